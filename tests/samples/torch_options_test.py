#!/usr/bin/env python3
"""The trainer with PyTorch refuses wrong options in a line, and ends with a status. All runs are in this process, since the import of
PyTorch takes seconds.

torch_options_test.py TRAINER DATA
"""

import contextlib
import io
import re
import runpy
import sys
import traceback

from checks import expect, failed


def run(trainer, *words):
    """The exit status, and all that is said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        sys.argv = [trainer, "--device", "cpu", *words]
        try:
            runpy.run_path(trainer, run_name="__main__")
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code)  # as the interpreter does
                return 1, said.getvalue()
            return end.code or 0, said.getvalue()
        except BaseException:
            return 1, traceback.format_exc()
    return 0, said.getvalue()


def main():
    trainer, data = sys.argv[1:]
    for expected, words, options in (
        (2, "batch and --epochs are at least 1", ("--data", data, "--batch", "0")),
        (2, "batch and --epochs are at least 1", ("--data", data, "--epochs", "0")),
        (1, "digits: cannot read /nonexistent.csv: .*No such file", ("--data", "/nonexistent.csv")),
        (1, f"digits: cannot read {re.escape(trainer)}: ", ("--data", trainer)),
    ):
        status, said = run(trainer, *options)
        expect(status == expected and re.search(words, said) and "Traceback" not in said, f"{options[2:] or options} is refused", said)
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())

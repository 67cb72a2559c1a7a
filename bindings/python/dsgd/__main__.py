"""The `dsgd` tool of the wheel: `dsgd run -n 4 -- python trainer.py`, or `python -m dsgd run ...`."""

import os
import pathlib
import signal
import sys


def main() -> None:
    tool = pathlib.Path(__file__).with_name("bin") / "dsgd"
    if not tool.exists():
        sys.exit(f"dsgd: there is no tool at {tool}; install the wheel, or use the one that comes with the C library")
    # Python ignores these signals, and the tool and its workers would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execv(tool, ["dsgd", *sys.argv[1:]])


if __name__ == "__main__":
    main()

"""Which log records a program sees, with and without a configuration of `logging`."""

import os
import subprocess
import sys
import textwrap

import pytest

UNKNOWN = "DSGD_NUMWORKERS"  # a misspelt DSGD_NUM_WORKERS is a warning

ALONE = "import dsgd\nwith dsgd.init(): pass\n"


def stderr_of(text, **variables):
    """What a program writes to standard error whose environment has a misspelt variable."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DSGD_")}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**kept, UNKNOWN: "2", **variables}, capture_output=True, text=True, timeout=60, check=True,
    ).stderr


def test_a_program_without_logging_sees_warnings_only():
    written = stderr_of(ALONE, DSGD_LOG_LEVEL="debug")
    assert written.count(UNKNOWN) == 1
    assert len(written.splitlines()) == 1, written


def test_log_to_stderr_writes_a_warning_once():
    written = stderr_of(ALONE, DSGD_LOG_TO="stderr")
    assert written.count(UNKNOWN) == 1
    assert "dsgd: warning: " in written


@pytest.mark.parametrize(
    "setting",
    [
        "logging.getLogger('dsgd').addHandler(logging.NullHandler())",
        "logging.getLogger('dsgd').setLevel(logging.ERROR)",
        "logging.basicConfig(filename=os.devnull)",
        "logging.lastResort = None",
    ],
)
def test_a_program_may_silence_the_warnings(setting):
    assert UNKNOWN not in stderr_of(f"import logging, os\n{setting}\n{ALONE}")


def test_the_handlers_of_a_program_get_each_record_once():
    written = stderr_of("import logging\nlogging.basicConfig(format='mine %(name)s %(message)s')\n" + ALONE)
    assert written.startswith("mine dsgd ") and written.count(UNKNOWN) == 1
    both = stderr_of("import logging\nlogging.basicConfig(format='mine %(message)s')\n" + ALONE, DSGD_LOG_TO="stderr")
    assert both.count(UNKNOWN) == 2  # the program asked for both

"""The packaging scripts say how they are called. That they work is the test python_wheel."""

import pathlib
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parent.parent


@pytest.mark.parametrize("script", ["build-wheel", "test-wheel"])
@pytest.mark.parametrize(
    "arguments, status, said",
    [(["--help"], 0, "usage: "), (["--no-such-option"], 2, "error: "), (["a", "b"], 2, "unrecognized arguments")],
)
def test_usage(script, arguments, status, said):
    run = subprocess.run([sys.executable, SCRIPTS / script, *arguments], capture_output=True, text=True)
    assert run.returncode == status and said in (run.stderr if status else run.stdout)


def test_a_wheel_that_is_not_there(tmp_path):
    run = subprocess.run([sys.executable, SCRIPTS / "test-wheel", tmp_path / "no.whl"], capture_output=True, text=True)
    assert run.returncode == 2 and "no.whl; build-wheel makes one" in run.stderr

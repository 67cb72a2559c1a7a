"""The packaging scripts say how they are called. That they work is the test python_wheel."""

import pathlib
import shutil
import subprocess
import sys
import venv

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


@pytest.mark.parametrize(
    "swig, said",
    [
        ("4.2.0", "missing: dpkg-source; install with: .ci/prepare build core python packages"),
        ("10.0.0", "missing: dpkg-source; install with: .ci/prepare build core python packages"),
        ("4.1.0", "missing: swig 4.2 or newer (pip install swig), dpkg-source; install with: .ci/prepare build core python packages"),
        (None, "missing: swig 4.2 or newer (pip install swig), dpkg-source; install with: .ci/prepare build core python packages"),
    ],
)
def test_a_machine_that_lacks_something(tmp_path, swig, said):
    """In one line, before anything is built."""
    venv.create(tmp_path / "venv")  # a Python with no SWIG beside it
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ["apt-get", "bash", "c++", "cmake", "dpkg-query", "env", "ninja", "sed"]:
        if shutil.which(name):
            (programs / name).symlink_to(shutil.which(name))
    if swig:
        (programs / "swig").write_text(f"#!{programs / 'bash'}\necho\necho 'SWIG Version {swig}'\n")
        (programs / "swig").chmod(0o755)
    run = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", SCRIPTS / "build-wheel", "--build", tmp_path / "build", "--output", tmp_path],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1 and run.stderr == f"build-wheel: {said}\n" and not (tmp_path / "build").exists()


def test_no_source_distribution():
    run = subprocess.run(
        [sys.executable, "-c", "import wheel_backend; wheel_backend.build_sdist('.')"],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1 and "build the wheel in a clone" in run.stderr and "Traceback" not in run.stderr


def test_the_tool_of_a_package_that_is_not_a_wheel():
    run = subprocess.run([sys.executable, "-m", "dsgd", "version"], capture_output=True, text=True)
    assert run.returncode == 1 and "there is no tool at" in run.stderr and "Traceback" not in run.stderr

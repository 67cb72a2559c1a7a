"""The packaging scripts check their arguments and needs. That packages work are the tests python_wheel and python_sdist."""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import venv

import pytest

import dsgd

SCRIPTS = pathlib.Path(__file__).parent.parent
CLONE = SCRIPTS.parent.parent


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


LACKS_DPKG = "missing: dpkg-source; install with: .ci/prepare build core python packages"
LACKS_BOTH = "missing: swig 4.2 or newer (pip install swig), dpkg-source; install with: .ci/prepare build core python packages"


@pytest.mark.parametrize(
    "on_path, in_clone, said",
    [
        ("4.2.0", None, LACKS_DPKG),
        ("10.0.0", None, LACKS_DPKG),
        ("4.1.0", None, LACKS_BOTH),
        (None, None, LACKS_BOTH),
        ("4.1.0", "4.2.0", LACKS_DPKG),
        (None, "4.2.0", LACKS_DPKG),
    ],
)
def test_a_machine_that_lacks_something(tmp_path, on_path, in_clone, said):
    """In one line, before anything is built. `.ci/prepare build` puts SWIG into the clone's build/venv, and any Python may build."""
    venv.create(tmp_path / "venv")  # a Python with no SWIG beside it
    clone = tmp_path / "clone"
    for name in ("bindings/python/build-wheel", "bindings/python/wheel_backend.py", "capi/bundle/build-deps"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CLONE / name, clone / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ["apt-get", "bash", "c++", "cmake", "dpkg-query", "env", "ninja", "sed"]:
        if shutil.which(name):
            (programs / name).symlink_to(shutil.which(name))
    for folder, version in ((programs, on_path), (clone / "build" / "venv" / "bin", in_clone)):
        if version:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "swig").write_text(f"#!{programs / 'bash'}\necho\necho 'SWIG Version {version}'\n")
            (folder / "swig").chmod(0o755)
    build_wheel = clone / "bindings" / "python" / "build-wheel"
    run = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", build_wheel, "--build", tmp_path / "build", "--output", tmp_path],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1 and run.stderr == f"build-wheel: {said}\n" and not (tmp_path / "build").exists()


@pytest.mark.skipif(not (CLONE / ".git").exists(), reason="this is not a clone")
def test_the_source_archive_has_tracked_files_only(tmp_path):
    """That a wheel can be built from it is the test python_sdist."""
    build = [sys.executable, SCRIPTS / "build-wheel", "--sdist", "--output"]
    for output in (tmp_path / "first", tmp_path / "second"):
        printed = subprocess.run([*build, output], capture_output=True, text=True, check=True).stdout
        [sdist] = output.iterdir()
        assert printed == f"{sdist}\n" and sdist.name == f"dsgd-{dsgd.__version__}.tar.gz"
    assert sdist.read_bytes() == (tmp_path / "first" / sdist.name).read_bytes()
    with tarfile.open(sdist) as archive:
        entries = {entry.name.removeprefix(f"dsgd-{dsgd.__version__}/"): entry for entry in archive}
        pyproject, info = (archive.extractfile(entries[name]).read().decode() for name in ("pyproject.toml", "PKG-INFO"))
    assert 'backend-path = ["bindings/python"]\n' in pyproject and f"\nVersion: {dsgd.__version__}\n" in info
    tracked = subprocess.run(["git", "-C", CLONE, "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert entries.keys() - set(tracked) == {"pyproject.toml", "PKG-INFO"}
    assert not any(name.startswith(("tests/", "samples/", "bindings/java/", "bindings/python/tests/")) for name in entries)
    assert entries["capi/bundle/build-deps"].mode == 0o755 and entries["LICENSE"].mode == 0o644


def test_no_source_archive_outside_a_clone(tmp_path):
    scripts = tmp_path / "bindings" / "python"
    scripts.mkdir(parents=True)
    for name in ("build-wheel", "wheel_backend.py"):
        shutil.copy(SCRIPTS / name, scripts)
    run = subprocess.run([sys.executable, scripts / "build-wheel", "--sdist"], capture_output=True, text=True)
    assert run.returncode == 1 and f"git lists none in '{tmp_path}'; make the archive in a clone" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_tool_of_a_package_that_is_not_a_wheel():
    run = subprocess.run([sys.executable, "-m", "dsgd", "version"], capture_output=True, text=True)
    assert run.returncode == 1 and "there is no tool at" in run.stderr and "Traceback" not in run.stderr

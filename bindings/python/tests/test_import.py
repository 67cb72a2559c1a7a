"""A package whose extension module is for another Python says so, and what to do."""

import os
import pathlib
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

import dsgd
from dsgd import _not_built


def message_of(module, content, folder):
    """What `import dsgd` says when `module` is all that the package has of natives."""
    package = folder / "dsgd"
    shutil.copytree(pathlib.Path(dsgd.__file__).parent, package, ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
    if module:
        (package / module).write_bytes(content)
    # The folder comes first in sys.path.
    run = subprocess.run([sys.executable, "-B", "-c", "import dsgd"], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 1
    return run.stderr.splitlines()[-1]


@pytest.mark.parametrize("module", ["_raw.cpython-27-x86_64-linux-gnu.so", None])
def test_the_wrong_python_is_named_with_the_remedies(module, tmp_path):
    message = message_of(module, b"", tmp_path)
    for part in (
        "ImportError: ",
        module or "no extension module",
        sys.executable,
        f"_raw{EXTENSION_SUFFIXES[0]}",
        f"-DPython3_EXECUTABLE={sys.executable}",
        "build-wheel",
    ):
        assert part in message


def test_a_module_that_cannot_be_loaded_keeps_the_loaders_words(tmp_path):
    message = message_of(f"_raw{EXTENSION_SUFFIXES[0]}", b"not ELF at all" * 100, tmp_path)
    assert "invalid ELF header" in message and "build-wheel" not in message


def test_a_free_threaded_python_refuses_the_module_for_the_stable_abi(tmp_path, monkeypatch):
    monkeypatch.setattr(_not_built, "FOLDER", tmp_path)
    monkeypatch.setattr(_not_built, "EXTENSION_SUFFIXES", [".cpython-313t-x86_64-linux-gnu.so", ".abi3.so", ".so"])
    monkeypatch.setattr(sys, "abiflags", "t")
    _not_built.refuse_free_threaded()  # without a module, whose absence is another error
    (tmp_path / "_raw.abi3.so").touch()
    with pytest.raises(ImportError, match="is a free-threaded CPython, and _raw.abi3.so .* Run a CPython that has the GIL"):
        _not_built.refuse_free_threaded()
    (tmp_path / "_raw.cpython-313t-x86_64-linux-gnu.so").touch()
    _not_built.refuse_free_threaded()
    (tmp_path / "_raw.cpython-313t-x86_64-linux-gnu.so").unlink()
    monkeypatch.setattr(sys, "abiflags", "")
    _not_built.refuse_free_threaded()


def test_the_wheel_of_nccl_beside_the_python_is_found(tmp_path):
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    script = "from dsgd._nccl import wheel_nccl; print(wheel_nccl())"
    search = os.pathsep.join([str(tmp_path), str(pathlib.Path(dsgd.__file__).parent.parent)])

    def found():
        environment = dict(os.environ, PYTHONPATH=search)
        return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True).stdout.strip()

    library.parent.mkdir(parents=True)
    assert found() != str(library)
    library.touch()
    assert found() == str(library)

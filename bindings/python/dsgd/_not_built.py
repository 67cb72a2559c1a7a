"""Why the extension module cannot be imported: it is for another Python."""

from __future__ import annotations

import pathlib
import sys
from importlib.machinery import EXTENSION_SUFFIXES

FOLDER = pathlib.Path(__file__).parent
STABLE_ABI = "_raw.abi3.so"  # the wheel's module, for CPython 3.11 and later


def refuse_free_threaded() -> None:
    """Raises ImportError if this CPython is free-threaded and the module is for the stable ABI, which such a CPython must not load."""
    if "t" not in sys.abiflags or not (FOLDER / STABLE_ABI).exists() or (FOLDER / f"_raw{EXTENSION_SUFFIXES[0]}").exists():
        return
    raise ImportError(
        f"{sys.executable} is a free-threaded CPython, and {STABLE_ABI} in {FOLDER} uses the stable ABI, which "
        "free-threaded CPythons do not support. Run a CPython that has the GIL",
        name="dsgd._raw",
    )


def explained(error: ImportError) -> ImportError:
    """Says which extension modules are here, which Python runs, and what to do. Returns `error` itself if a module for this
    Python is here, since it then says why the library cannot be loaded."""
    found = sorted(path.name for path in FOLDER.glob("_raw.*.so"))
    if any((FOLDER / f"_raw{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        return error
    version = ".".join(str(number) for number in sys.version_info[:2])
    return ImportError(
        f"dsgd in {FOLDER} was not built for this Python {version} ({sys.executable}), which looks for "
        f"_raw{EXTENSION_SUFFIXES[0]}; there is {' and '.join(found) or 'no extension module'}. Run the Python that it was "
        f"built for, configure the build with -DPython3_EXECUTABLE={sys.executable}, or install the wheel that "
        "bindings/python/build-wheel makes, which is for CPython 3.11 and later",
        name="dsgd._raw",
    )

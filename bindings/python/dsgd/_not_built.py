"""Why the extension module cannot be imported: it is for one version of Python."""

from __future__ import annotations

import pathlib
import sys
from importlib.machinery import EXTENSION_SUFFIXES


def explained(error: ImportError) -> ImportError:
    """What lies here, what runs, and what to do; `error` itself where it says so: a library that cannot be loaded."""
    folder = pathlib.Path(__file__).parent
    found = sorted(path.name for path in folder.glob("_raw.*.so"))
    if any((folder / f"_raw{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        return error
    version = ".".join(str(number) for number in sys.version_info[:2])
    return ImportError(
        f"dsgd in {folder} was not built for this Python {version} ({sys.executable}), which looks for "
        f"_raw{EXTENSION_SUFFIXES[0]}; there is {' and '.join(found) or 'no extension module'}. Run the Python that it was "
        f"built for, configure the build with -DPython3_EXECUTABLE={sys.executable}, or install a wheel that "
        "bindings/python/build-wheel made with this Python",
        name="dsgd._raw",
    )

"""NCCL's wheel beside the Python in use, which the dynamic loader does not look for."""

from __future__ import annotations

import importlib.util
import os


def wheel_nccl() -> str:
    """Path of the shared library, or "" if there is none."""
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        return ""
    for folder in (package.submodule_search_locations or ()) if package else ():
        path = os.path.join(folder, "lib", "libnccl.so.2")
        if os.path.exists(path):
            return path
    return ""

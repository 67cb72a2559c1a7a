"""The base of DType: sizes and codes of an element type, from its name."""

from __future__ import annotations

import enum
import re
from typing import Tuple

# By kind and bits: the struct module's letter, and DLPack's type code. The struct module has no letter for bfloat16, whose bits
# are given as numbers of 16 bits.
_FORMATS = {("float", 16): "e", ("float", 32): "f", ("float", 64): "d", ("bfloat", 16): "H"}
_INTEGER_FORMATS = {8: "b", 16: "h", 32: "i", 64: "q"}
_DLPACK_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}


class Element(enum.IntEnum):
    """The base of DType."""

    @property
    def _kind(self) -> Tuple[str, int]:
        kind, bits = re.findall(r"[a-z]+|\d+", self.name)
        return kind, int(bits)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._kind[1] // 8

    @property
    def format(self) -> str:
        """The struct module's letter; bfloat16 has that of its bits, "H"."""
        kind, bits = self._kind
        if kind in ("int", "uint"):
            letter = _INTEGER_FORMATS[bits]
            return letter if kind == "int" else letter.upper()
        return _FORMATS[kind, bits]

    @property
    def dlpack(self) -> Tuple[int, int]:
        """DLPack's type code and bits."""
        kind, bits = self._kind
        return _DLPACK_CODES[kind], bits

"""Checks for which GPUs a library has machine code and PTX. Reads its section .nv_fatbin, whose layout NVIDIA does not document.

check_code.py LIBRARY WANTED...     WANTED: sm_80 for machine code, compute_90 for PTX; status 1 if the library has other code, or
                                    lacks some of this
"""

from __future__ import annotations

import struct
import sys
from typing import Iterator, Set, Tuple

MAGIC = 0xBA55ED50
KINDS = {1: "compute", 2: "sm"}
CAPABILITY = 28  # offset of the compute capability in the header of a piece of code
# Offsets in the header of ELF64: of e_shoff, and of e_shentsize, e_shnum and e_shstrndx, one after the other.
SECTIONS, SECTION_COUNTS = 40, 58


def section(library: bytes, wanted: bytes) -> bytes:
    table, = struct.unpack_from("<Q", library, SECTIONS)
    size, count, names = struct.unpack_from("<HHH", library, SECTION_COUNTS)
    headers = [struct.unpack_from("<IIQQQQ", library, table + i * size) for i in range(count)]
    text = headers[names][4]
    for name, _, _, _, offset, nbytes in headers:
        if library[text + name:].split(b"\0", 1)[0] == wanted:
            return library[offset:offset + nbytes]
    return b""


def entries(fatbin: bytes) -> Iterator[Tuple[int, int]]:
    """Yields the kind and the compute capability of each piece of code."""
    at = 0
    while at + 16 <= len(fatbin):
        magic, _, header, size = struct.unpack_from("<IHHQ", fatbin, at)
        if magic != MAGIC:
            at += 8  # padding
            continue
        at += header
        end = at + size
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", fatbin, at)
            yield kind, struct.unpack_from("<I", fatbin, at + CAPABILITY)[0]
            at += header + size


def code(library: bytes) -> Set[str]:
    return {f"{KINDS[kind]}_{capability}" for kind, capability in entries(section(library, b".nv_fatbin")) if kind in KINDS}


def main() -> int:
    if len(sys.argv) < 3 or sys.argv[1] == "--help":
        print(__doc__, file=sys.stdout if "--help" in sys.argv else sys.stderr)
        return 0 if "--help" in sys.argv else 2
    with open(sys.argv[1], "rb") as file:
        found = code(file.read())
    wanted = set(sys.argv[2:])
    print(f"{sys.argv[1]} has code for: {', '.join(sorted(found)) or 'nothing'}")
    for name in sorted(wanted - found):
        print(f"missing: {name}")
    for name in sorted(found - wanted):
        print(f"unexpected: {name}")
    return 0 if found == wanted else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The reader of dsgd.h: its functions, enums and constants. The header keeps to a form that this file can read.

header.py HEADER   prints each function on one line: "int32_t dsgd_rank(const dsgd_session *session);"
"""

import pathlib
import re
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    type: str  # "const dsgd_session *"
    name: str


@dataclass(frozen=True)
class Function:
    result: str
    name: str
    arguments: tuple

    def __str__(self):
        spaced = ", ".join(a.type + ("" if a.type.endswith("*") else " ") + a.name for a in self.arguments) or "void"
        return f"{self.result}{'' if self.result.endswith('*') else ' '}{self.name}({spaced});"


@dataclass(frozen=True)
class Enumerator:
    name: str
    value: int
    comment: str  # "" for none


@dataclass(frozen=True)
class Enum:
    name: str
    enumerators: tuple


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)


def functions(text, start=r"^DSGD_API\s+"):
    """Every declaration that begins with `start`, in the order of the header."""
    declaration = re.compile(start + r"([\w\s]+?[\s*]+)(\w+)\s*\(([^()]*)\);", re.MULTILINE)
    return [Function(" ".join(result.split()), name, _arguments(arguments))
            for result, name, arguments in declaration.findall(without_comments(text))]


def _arguments(text):
    parts = [" ".join(part.split()) for part in text.split(",")]
    if parts == ["void"]:
        return ()
    return tuple(Argument(*(word.strip() for word in re.fullmatch(r"(.*?)(\w+)", part).groups())) for part in parts)


def enums(text):
    found = []
    for name, body in re.findall(r"^enum (\w+) \{(.*?)\};", text, re.MULTILINE | re.DOTALL):
        members = re.findall(r"(\w+) = (-?\d+),?[ \t]*(?:/\*(.*?)\*/)?", body, re.DOTALL)
        found.append(Enum(name, tuple(Enumerator(n, int(value), " ".join(comment.split())) for n, value, comment in members)))
    return found


def constants(text):
    """The macros that are numbers."""
    return re.findall(r"^#define (DSGD_\w+) \d+", text, re.MULTILINE)


def types(text):
    """Names of the structs and enums, opaque ones too."""
    return sorted(set(re.findall(r"^(?:typedef struct|enum) (dsgd_\w+)", without_comments(text), re.MULTILINE)))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for function in functions(pathlib.Path(sys.argv[1]).read_text()):
        print(function)

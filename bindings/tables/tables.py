"""The input of the generated files: dsgd.h, and how each language spells its names."""

import pathlib
import re
from dataclasses import dataclass

import header

BINDINGS = pathlib.Path(__file__).resolve().parent.parent
HEADER = BINDINGS.parent / "capi/include/dsgd/dsgd.h"
LANGUAGES = ("python", "java", "go")


@dataclass(frozen=True)
class Table:
    """An enum that becomes one in every language."""

    enum: str
    type: str  # its name in every language
    prefix: str  # of the enumerators that are meant; others are left out
    go: str  # before a name in Go
    doc: str  # what it is


TABLES = (
    Table("dsgd_status", "Status", "DSGD_ERR_", "Err", "the kind of an error"),
    Table("dsgd_dtype", "DType", "DSGD_", "", "an element type"),
    Table("dsgd_reduction", "Reduction", "DSGD_", "", "how a collective combines the elements of the workers; integer sums wrap around, and the mean is for floating point"),
    Table("dsgd_session_state", "SessionState", "DSGD_SESSION_", "Session", "whether a session can make steps"),
    Table("dsgd_log_level", "LogLevel", "DSGD_LOG_", "Log", "the severity of a log record; lower is more severe"),
)
# Flags are arguments in Python and Java, which take the numbers from their raw modules.
GO_FLAGS = (
    Table("dsgd_parameter_flag", "ParameterFlag", "DSGD_", "", "an option of a parameter"),
    Table("dsgd_shard_flag", "ShardFlag", "DSGD_SHARD_", "", "an option of a shard"),
)
C_ONLY = ("dsgd_transfer", "dsgd_strategy_flags")  # of plug-ins


@dataclass(frozen=True)
class Member:
    c: str
    name: str  # "WORKER_LOST"
    value: int
    comment: str

    @property
    def words(self):
        return self.name.split("_")


class Source:
    """The header, read, and the names of each language."""

    def __init__(self, header_file=HEADER, names_file=BINDINGS / "tables/names.txt"):
        text = header_file.read_text()
        self.functions = header.functions(text)
        self.constants = header.constants(text)
        self.enums = {enum.name: enum for enum in header.enums(text)}
        self.names = self._names(text, names_file)

    def members(self, table):
        return [Member(e.name, e.name[len(table.prefix):], e.value, e.comment)
                for e in self.enums[table.enum].enumerators if e.name.startswith(table.prefix)]

    def _names(self, text, names_file):
        names = {}
        for number, line in enumerate(names_file.read_text().splitlines(), 1):
            words = line.split()
            if words and not line.startswith("#"):
                if len(words) != 1 + len(LANGUAGES):
                    raise SystemExit(f"{names_file}:{number}: a C name and one name for each of {', '.join(LANGUAGES)} are expected")
                names[words[0]] = dict(zip(LANGUAGES, words[1:]))
        known = {enum for enum in self.enums}
        for table in TABLES + GO_FLAGS:
            known.discard(table.enum)
            for member in self.members(table):
                names.setdefault(member.c, {language: spell(member, table) for language, spell in SPELLING.items()})
        declared = {function.name for function in self.functions} | set(header.types(text)) | {
            e.name for enum in self.enums.values() for e in enum.enumerators}
        for name in sorted(known - set(C_ONLY)):
            raise SystemExit(f"enum {name} is in none of the tables; add it to tables.py")
        c_only = {e.name for enum in C_ONLY if enum in self.enums for e in self.enums[enum].enumerators} | {"DSGD_OK"}
        for name in sorted(declared - names.keys() - c_only):
            raise SystemExit(f"{name} has no names in {names_file}; add what each language calls it")
        for name in sorted(names.keys() - declared):
            raise SystemExit(f"{names_file}: dsgd.h has no {name}; remove the line")
        return names

    def renamed(self, language):
        """C name -> the language's own, without those that C alone has."""
        return {c: names[language] for c, names in sorted(self.names.items()) if names[language] != "-"}

    def translate(self, text, language):
        """A comment of the header, in the language's names."""
        names = self.renamed(language)
        return re.sub(r"\b(?:dsgd|DSGD)_\w+", lambda match: names.get(match[0], match[0]), text)


def camel(words):
    return "".join(word if word in ("IO",) else word.capitalize() for word in words)


def element(member):
    """Kind and bits of an element type: ("uint", 8), ("bfloat", 16)."""
    kind, bits = re.fullmatch(r"([A-Z]+?)(\d+)", member.name).groups()
    return kind.lower(), int(bits)


def python_name(member, table):
    return member.name if table.enum in ("dsgd_status", "dsgd_session_state", "dsgd_log_level") else member.name.lower()


def go_name(member, table):
    return table.go + camel(member.words)


SPELLING = {
    "python": lambda member, table: f"{table.type}.{python_name(member, table)}",
    "java": lambda member, table: f"{table.type}.{member.name}",
    "go": go_name,
}

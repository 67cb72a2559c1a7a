"""The generated files of each language."""

import textwrap

import tables

MADE = "Made from dsgd.h by bindings/tables/generate; do not edit."


def sentence(text):
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith(".") else ".")


def python(source):
    lines = [
        f'"""The enums of dsgd.h, and the names of its functions in Python. {MADE}"""',
        "",
        "from __future__ import annotations",
        "",
        "import enum",
        "from typing import Dict",
        "",
        "from ._element import Element",
    ]
    for table in tables.TABLES:
        base = "Element" if table.type == "DType" else "enum.IntEnum"
        lines += ["", "", f"class {table.type}({base}):"]
        lines += [f'    """{sentence(table.doc)}"""', ""]
        for member in source.members(table):
            comment = source.translate(member.comment, "python")
            lines += [f"    {tables.python_name(member, table)} = {member.value}" + (f"  #: {comment}" if comment else "")]
        if table.type == "Status":
            lines += ["    UNKNOWN = 1  #: a code of a newer library; Error.code is its number"]
        if table.type == "SessionState":
            lines += ["    UNKNOWN = -1  #: a state of a newer library"]
    lines += ["", "", "NAMES: Dict[str, str] = {"]
    lines += [f'    "{c}": "{name}",' for c, name in source.renamed("python").items()]
    return "\n".join(lines + ["}"]) + "\n"


# Enumerators in Java for what a newer library may return.
UNKNOWN = {
    "Status": (1, "A code of a newer library; {@link DsgdException#code} is its number."),
    "SessionState": (-1, "A state of a newer library."),
}


def java_doc(text, indent=""):
    if len(indent) + len(text) + 7 <= 100:
        return [f"{indent}/** {text} */"]
    body = textwrap.wrap(text, 100 - len(indent) - 3)
    return [f"{indent}/**", *(f"{indent} * {line}" for line in body), f"{indent} */"]


def java_enum(source, table):
    lines = [f"// {MADE}", "package io.dsgd;", ""]
    lines += java_doc(sentence(table.doc))
    lines += [f"public enum {table.type} {{"]
    members = source.members(table)
    for member in members:
        comment = sentence(source.translate(member.comment, "java"))
        if comment:
            lines += java_doc(comment, "  ")
        extra = f", {tables.element(member)[1] // 8}" if table.type == "DType" else ""
        last = member is members[-1] and table.type not in UNKNOWN
        lines += [f"  {member.name}({member.value}{extra}){';' if last else ','}"]
    if table.type in UNKNOWN:
        value, comment = UNKNOWN[table.type]
        lines += [f"  /** {comment} */", f"  UNKNOWN({value});"]
    lines += ["", "  final int code;"]
    if table.type == "DType":
        lines += ["  private final int size;", "", "  DType(int code, int size) {", "    this.code = code;",
                  "    this.size = size;", "  }", "", "  /** Bytes of one element. */", "  public int size() {",
                  "    return size;", "  }"]
    else:
        lines += ["", f"  {table.type}(int code) {{", "    this.code = code;", "  }"]
    if table.type in UNKNOWN or table.type == "LogLevel":
        beyond = "UNKNOWN" if table.type in UNKNOWN else "values()[values().length - 1]"
        lines += ["", f"  static {table.type} of(int code) {{", f"    for ({table.type} known : values()) {{",
                  "      if (known.code == code) {", "        return known;", "      }", "    }", f"    return {beyond};",
                  "  }"]
    return "\n".join(lines + ["}"]) + "\n"


def java_names(source):
    lines = [f"// {MADE}", "package io.dsgd;", "", "import static java.util.Map.entry;", "", "import java.util.Map;", "",
             "/** C's names of functions, types and constants, and Java's. */", "final class CNames {",
             "  static final Map<String, String> IN_JAVA =", "      Map.ofEntries("]
    entries = [f'          entry("{c}", "{name}")' for c, name in source.renamed("java").items()]
    return "\n".join([*lines, ",\n".join(entries) + ");", "", "  private CNames() {}", "}"]) + "\n"


def go(source):
    lines = ["// Code generated from dsgd.h by bindings/tables/generate. DO NOT EDIT.", "", "package dsgd"]
    for table in tables.TABLES + tables.GO_FLAGS:
        more = " Statuses are errors themselves, for errors.Is. A newer library may return numbers that are not listed here."
        lines += [""] + _go_comment(f"{table.type} is {table.doc}." + (more if table.type == "Status" else ""))
        lines += [f"type {table.type} {'uint32' if 'Flag' in table.type else 'int32'}", "", "const ("]
        members = [(tables.go_name(m, table), str(m.value), source.translate(m.comment, "go")) for m in source.members(table)]
        wide, wider = max(len(name) for name, _, _ in members), max(len(value) for _, value, _ in members)
        for name, value, comment in members:
            tail = f"{value:<{wider}} // {comment}" if comment else value
            lines += [f"\t{name:<{wide}} {table.type} = {tail}"]
        lines += [")"]
        plain = "".join(f'\tcase {name}:\n\t\treturn "{_go_text(name, table)}"\n' for name, _, _ in members)
        if "Flag" not in table.type:
            lines += ["", f"// String is the name of the {table.type}.", f"func (v {table.type}) String() string {{", "\tswitch v {",
                      plain.rstrip("\n"), "\t}", f'\treturn unknown("{table.type}", int(v))', "}"]
    lines += _go_elements(source)
    lines += ["", "// cNames are C's names of functions, types and constants, and Go's.",
              "var cNames = map[string]string{}", "", "func init() {", "\tfor _, pair := range [...][2]string{"]
    lines += [f'\t\t{{"{c}", "{name}"}},' for c, name in source.renamed("go").items()]
    lines += ["\t} {", "\t\tcNames[pair[0]] = pair[1]", "\t}", "}"]
    return "\n".join(lines) + "\n"


def _go_elements(source):
    table = next(table for table in tables.TABLES if table.type == "DType")
    dtypes = [(m, *tables.element(m), tables.go_name(m, table)) for m in source.members(table)]
    half = [name for _, kind, bits, name in dtypes if "float" in kind and bits == 16]
    go_type = {name: f"{name}Bits" if name in half else name.lower() for _, _, _, name in dtypes}
    lines = []
    for member, _, bits, name in dtypes:
        if name in half:
            lines += ["", f"// {name}Bits are the bits of an element, for which Go has no type of its own: {member.comment}.",
                      f"type {name}Bits uint{bits}"]
    lines += ["", "// Element is a Go type that buffers may be made of.", "type Element interface {",
              "\t" + " | ".join(go_type.values()), "}", "", "func dtypeOf[T Element]() DType {", "\tvar zero T",
              "\tswitch any(zero).(type) {"]
    for name, of in go_type.items():
        lines += [f"\tcase {of}:", f"\t\treturn {name}"]
    lines += ["\t}", '\tpanic("dsgd: tables.go is stale")', "}", "", "// Size is the number of bytes of one element, 0 for an unknown type.",
              "func (v DType) Size() int {", "\tswitch v {"]
    for size in sorted({bits for _, _, bits, _ in dtypes}):
        lines += [f"\tcase {', '.join(name for _, _, bits, name in dtypes if bits == size)}:", f"\t\treturn {size // 8}"]
    return lines + ["\t}", "\treturn 0", "}"]


def _go_text(name, table):
    return name if table.type == "Status" else name.removeprefix(table.go).lower()


def _go_comment(text):
    return [f"// {line}" for line in textwrap.wrap(text, 117)]

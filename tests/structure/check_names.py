#!/usr/bin/env python3
"""Each binding has a name of its own for every C name in a message, and puts it there.

check_names.py SOURCE [--self-test]

The messages are the string literals of the library. bindings/tables/names.txt has the names of each language.
"""

import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings/tables"))
import header  # noqa: E402
import tables  # noqa: E402

MESSAGES = ("core", "capi/src", "transport")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
NAME = re.compile(r"\b(?:dsgd|DSGD)_\w+")
# Where a binding makes an error or a log record, and the function that puts its names in.
TRANSLATED = {
    "bindings/python/dsgd/_errors.py": ["in_python(message)", "in_python(operation)"],
    "bindings/python/dsgd/_logs.py": ["in_python(_raw.dsgd_log_record_message("],
    "bindings/java/src/main/java/io/dsgd/DsgdException.java": ["inJava(message)", "inJava(operation)"],
    "bindings/java/src/main/java/io/dsgd/Session.java": ["inJava(Raw.dsgd_log_record_message("],
    "bindings/go/error.go": ["inGo(raw.Dsgd_error_message(", "inGo(raw.Dsgd_error_operation("],
    "bindings/go/log.go": ["inGo(strings.TrimSuffix(raw.Dsgd_log_record_message("],
}
# In literals that no message shows.
INTERNAL = {
    "dsgd_cuda_backend": "a symbol of the plug-in for GPUs",
}


def literals(text):
    return "\n".join(LITERAL.findall(header.without_comments(re.sub(r"//[^\n]*|#include[^\n]*", "", text))))


def unknown(text, known):
    """Names in the literals of a file that no table has. "DSGD_ERR_*" stands for all of a kind."""
    return sorted({name for name in NAME.findall(literals(text)) if name not in known and not name.endswith("_")})


def self_test():
    text = '// "dsgd_a"\n#include "dsgd_b"\nf("call dsgd_init", "DSGD_HEAD and dsgd_new, DSGD_SUM_"); /* "dsgd_c" */'
    if unknown(text, {"dsgd_init"}) != ["DSGD_HEAD", "dsgd_new"]:
        sys.exit(f"self-test: {unknown(text, {'dsgd_init'})}")


def main():
    if "--self-test" in sys.argv:
        return self_test()
    root = pathlib.Path(sys.argv[1])
    source = tables.Source(root / "capi/include/dsgd/dsgd.h", root / "bindings/tables/names.txt")
    rows = re.findall(r'^    \{"(\w+)", Type::', (root / "core/config/table.cc").read_text(), re.MULTILINE)
    keys = {f"DSGD_{name.upper()}" for name in rows}
    c_only = {e.name for enum in tables.C_ONLY for e in source.enums[enum].enumerators} | {"DSGD_OK", "DSGD_ERR_UNKNOWN"}
    constants = {"DSGD_VERSION", "DSGD_VERSION_MAJOR", "DSGD_VERSION_MINOR", "DSGD_VERSION_PATCH", "DSGD_PLUGIN_VERSION"}
    known = source.names.keys() | keys | c_only | constants | INTERNAL.keys()
    told = []
    for folder in MESSAGES:
        for path in sorted(root.joinpath(folder).rglob("*")):
            if path.suffix in (".cc", ".h") and not path.name.endswith("_test.cc"):
                told += [f"{path.relative_to(root)}: a message has the C name {name}, and bindings/tables/names.txt has no such line"
                         for name in unknown(path.read_text(), known)]
    for file, calls in TRANSLATED.items():
        text = (root / file).read_text()
        told += [f"{file}: '{call}' is missing: messages must have the names of the language" for call in calls if call not in text]
    # The help texts of the configuration's keys are shown in every language as they are.
    told += [f"core/config/table.cc: a help text has the C name {name}; say it without"
             for name in sorted(set(NAME.findall(literals((root / "core/config/table.cc").read_text()))) - keys)]
    # The texts of a binding itself.
    for pattern in ("bindings/python/dsgd/**/*.py", "bindings/java/src/main/**/*.java", "bindings/go/*.go"):
        for path in root.glob(pattern):
            if path.name in ("_tables.py", "CNames.java", "tables.go") or path.name.endswith("_test.go"):
                continue
            text = re.sub(r'"""(?:.|\n)*?"""|#[^\n]*', "", path.read_text()) if path.suffix == ".py" else path.read_text()
            told += [f"{path.relative_to(root)}: the literal names {name}; use the name in the language"
                     for name in sorted(set(NAME.findall(literals(text)))) if name in source.names]
    for line in told:
        print(line)
    sys.exit(1 if told else 0)


if __name__ == "__main__":
    main()

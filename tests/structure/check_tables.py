#!/usr/bin/env python3
"""Checks that bindings/tables refuses or takes over what is added to dsgd.h: check_tables.py SOURCE"""

import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
root = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(root / "bindings/tables"))
import languages  # noqa: E402
import raw_stub  # noqa: E402
import tables  # noqa: E402

HEADER = tables.HEADER.read_text()


def source(old, new, work):
    assert old in HEADER, old
    (work / "dsgd.h").write_text(HEADER.replace(old, new, 1))
    return tables.Source(work / "dsgd.h")


def refused(old, new, work, words):
    try:
        source(old, new, work)
    except SystemExit as told:
        return words in str(told) or sys.exit(f"'{words}' is not in: {told}")
    sys.exit(f"not noticed: {new}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        grown = source("DSGD_BFLOAT16 = 6", "DSGD_BFLOAT16 = 6, DSGD_INT16 = 77", work)
        made = {"python": languages.python(grown), "java": languages.java_enum(grown, tables.TABLES[1]), "go": languages.go(grown)}
        for language, words in {"python": "int16 = 77", "java": "INT16(77, 2)", "go": "case int16:\n\t\treturn Int16"}.items():
            if words not in made[language]:
                sys.exit(f"{language}: a new element type is not taken over")
        refused("DSGD_API int32_t dsgd_barrier(", "DSGD_API int32_t dsgd_fence(int32_t x);\nDSGD_API int32_t dsgd_barrier(", work,
                "dsgd_fence has no names")
        refused("enum dsgd_reduction {", "enum dsgd_color { DSGD_RED = 0 };\nenum dsgd_reduction {", work, "enum dsgd_color")
        refused("dsgd_digest(", "dsgd_hash(", work, "dsgd_hash has no names")
        odd = source("dsgd_digest(dsgd_session *session,", "dsgd_digest(dsgd_session *session, float **f,", work)
        try:
            raw_stub.write(odd)
        except SystemExit as told:
            assert "float ** f" in str(told), told
        else:
            sys.exit("an argument of an unknown type was given one in the stub")
    # The script says how it is called.
    generate = root / "bindings/tables/generate"
    said = subprocess.run([sys.executable, generate, "--no-such-option"], stderr=subprocess.DEVNULL).returncode
    if said != 2:
        sys.exit(f"generate --no-such-option ended with {said}")


if __name__ == "__main__":
    main()

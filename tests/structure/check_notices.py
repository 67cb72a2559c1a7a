#!/usr/bin/env python3
"""The wheel and the jar carry the licence of each library that is compiled or linked into libdsgd or the tool.

check_notices.py SOURCE [--self-test]

Headers tell which libraries these are; capi/bundle/bundle.cmake names the licences that are packed.
"""

import pathlib
import re
import sys

# Header to the name of the licence file; None: a part of the system, or a header that brings no code.
LIBRARIES = [
    (r"(capnp|kj)/.+", "capnproto"),
    (r"uv\.h", "libuv"),
    (r"sodium/.+", "libsodium"),
    (r"xxhash\.h", "xxhash"),
    (r"CLI/.+", "cli11"),
    (r"nlohmann/.+", "nlohmann_json"),
    (r"openssl/.+", None),  # declarations; the system's library is loaded at run time
    (r"sanitizer/.+", None),  # of the compiler, in tests
    (r"cuda(_runtime_api)?\.h", None),  # bindings/python/CMakeLists.txt packs the licence of the plug-in's runtime
    (r"(sys|net|netinet|arpa|linux)/[a-z_]+\.h|dsgd/dsgd\.h|[a-z_]+|nmmintrin\.h|arm_acle\.h", None),
    (r"(cxxabi|dirent|dlfcn|errno|fcntl|ifaddrs|limits|link|netdb|poll|pthread|sched|signal|std[a-z]+|string|time|ucontext|unistd)\.h", None),
]
INCLUDE = re.compile(r"^\s*#\s*include\s*<([^>]+)>", re.MULTILINE)
NOTICE = re.compile(r"\b(\w+)=[\w-]+-dev\b")


def problems_of(path, text, notices):
    for header in INCLUDE.findall(text):
        library = next((name for pattern, name in LIBRARIES if re.fullmatch(pattern, header)), "")
        if library == "":
            yield f"{path}: {header} is of no known library; add it to LIBRARIES, and its licence to capi/bundle/bundle.cmake"
        elif library is not None and library not in notices:
            yield f"{path}: {header} is of {library}, whose licence capi/bundle/bundle.cmake does not pack"


def main():
    if "--self-test" in sys.argv:
        for header, notices in (("uv.h", {"capnproto"}), ("zstd.h", {"capnproto", "libuv"}), ("kj/async.h", set())):
            if not list(problems_of("a.cc", f"#include <{header}>\n", notices)):
                sys.exit(f"self-test: {header} was not found")
        print("self-test: 3 violations found")
        return
    source = pathlib.Path(sys.argv[1])
    notices = set(NOTICE.findall((source / "capi/bundle/bundle.cmake").read_text()))
    files = [path for folder in ("transport", "core", "capi") for path in sorted((source / folder).rglob("*"))
             if path.suffix in (".h", ".cc", ".c", ".cu")]  # fmt: skip
    if len(files) < 50:
        sys.exit(f"only {len(files)} files were found under {source}")
    problems = [problem for path in files for problem in problems_of(path, path.read_text(), notices)]
    used = {name for path in files for header in INCLUDE.findall(path.read_text())
            for pattern, name in LIBRARIES if re.fullmatch(pattern, header)}  # fmt: skip
    problems += [f"capi/bundle/bundle.cmake packs the licence of {name}, which no file includes" for name in sorted(notices - used)]
    print("\n".join(problems) or f"{len(files)} files include headers of {', '.join(sorted(notices))}; their licences are packed")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

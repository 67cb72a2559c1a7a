#!/usr/bin/env python3
"""Includes follow the arrows: samples, bindings -> capi -> core -> transport.

check_includes.py SOURCE [--self-test]
"""

import pathlib
import re
import sys

# The headers that a folder may include, of this project and of others.
MAY = {
    "transport": ["transport"],
    "core": ["core", "transport"],
    "capi": ["capi", "core", "transport"],
    "bindings": [],
    "samples": [],
}
# The structs of DLPack, which dsgd.h only names, stand in one place.
DLPACK = "capi/src/dlpack_structs.h"
# Which folders of core a folder of core may include, besides itself and base: folders above it in this table, so that
# there is no cycle.
CORE_FOLDERS = {
    "base": [],
    "group": [],
    "metrics": [],
    "config": [],
    "data": [],
    "checkpoint": [],
    "reduce": [],
    "membership": [],
    "optimizer": ["config", "reduce"],
    "device": ["optimizer", "reduce"],
    "model": ["device", "optimizer"],
    "mesh": ["group", "metrics"],
    "collectives": ["group", "mesh", "reduce"],
    "objects": ["mesh", "metrics"],
    "strategy": ["collectives", "config", "device", "reduce"],
    "step": ["collectives", "config", "device", "group", "mesh", "metrics", "model", "optimizer", "reduce", "strategy"],
    "session": ["checkpoint", "collectives", "config", "data", "device", "group", "membership", "mesh", "metrics", "model", "objects", "reduce", "step", "strategy"],
}
# core and transport's interfaces know nothing of the libraries behind them.
LIBRARIES = re.compile(r"uv\.h|capnp/|kj/|pthread\.h|sys/|netinet/|arpa/|unistd\.h|fcntl\.h|poll\.h|time\.h|thread|chrono_io|"
                       r"condition_variable|future|random|fstream|filesystem|sodium|openssl|curl")
# The plug-in alone knows CUDA, and samples that are compiled for it: libdsgd must load where there is none.
CUDA = re.compile(r"cuda|nccl\.h|driver_types\.h")
# It is a library of its own, whose communicators need a thread, and which pins pages; core's threads come from the loop.
PLUGIN_MAY = {"thread", "condition_variable", "sys/mman.h", "unistd.h"}
INTERFACES = ["loop.h", "poster.h", "bounded_calls.h", "network.h", "messages.h", "payloads.h", "files.h", "http.h"]
# core may include the interfaces of transport, its base, and the codec, whose header shows no library.
CORE_MAY_SEE = re.compile(r"transport/(loop|poster|authentication|bounded_calls|files|http|network|messages|payloads|schema/codec|base/base64|base/status|base/utf8)\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def core_folder(path):
    parts = path.parts
    return parts[len(parts) - 1 - parts[::-1].index("core") + 1]


def may_see(path, target):
    folder, other = core_folder(path), target.split("/")[1]
    return other in ("base", folder) or other in CORE_FOLDERS.get(folder, [])


def problems_of(path, folder, text):
    for target in INCLUDE.findall(text):
        first = target.split("/")[0]
        if first in MAY and first not in MAY[folder] and "/" in target and (folder, target) != ("bindings", DLPACK):
            yield f"{path}: {folder} may not include {target}"
        if folder == "core" and first == "core" and not may_see(path, target):
            yield f"{path}: core/{core_folder(path)} may not include {target}"
        if folder == "core" and first == "transport" and not CORE_MAY_SEE.fullmatch(target):
            yield f"{path}: core sees transport's interfaces only, not {target}"
        interface = folder == "transport" and path.parent.name == "transport"
        plugin = "device/cuda/" in path.as_posix()
        if (folder == "core" or interface) and LIBRARIES.match(target) and not (plugin and target in PLUGIN_MAY):
            yield f"{path}: {target} belongs behind transport's interfaces"
        sample = folder == "samples" and path.suffix == ".cu"
        if CUDA.match(target) and not sample and not plugin:
            yield f"{path}: {target} belongs into core/device/cuda"
        if path.name == "dsgd.h" and target not in ("stddef.h", "stdint.h"):
            yield f"{path}: dsgd.h includes only <stddef.h> and <stdint.h>, not {target}"


def main():
    order = list(CORE_FOLDERS)
    for folder, others in CORE_FOLDERS.items():
        for other in others:
            if order.index(other) >= order.index(folder):
                sys.exit(f"check_includes: core/{folder} may include core/{other}, which does not stand above it in CORE_FOLDERS")
    if "--self-test" in sys.argv:
        bad = [("core/a.cc", "core", "#include <uv.h>\n"), ("core/a.cc", "core", '#include "capi/src/error.h"\n'), ("core/device/a.cc", "core", "#include <cuda_runtime_api.h>\n"),
               ("core/mesh/a.cc", "core", '#include "core/session/engine.h"\n'), ("core/device/a.cc", "core", "#include <thread>\n"), ("core/a.cc", "core", "#include <sodium.h>\n"), ("core/device/cuda/a.cc", "core", "#include <uv.h>\n"),
               ("core/a.cc", "core", '#include "transport/uv/uv_loop.h"\n'), ("transport/loop.h", "transport", "#include <kj/async.h>\n"),
               ("transport/uv/a.cc", "transport", '#include "core/base/log.h"\n'),
               ("capi/include/dsgd/dsgd.h", "capi", "#include <stdio.h>\n"), ("samples/c/a.c", "samples", '#include "core/a.h"\n'), ("bindings/a.c", "bindings", '#include "capi/src/call.h"\n'),
               ("samples/c/a.c", "samples", "#include <cuda_runtime.h>\n"), ("samples/c/a.cu", "samples", '#include "core/a.h"\n')]
        for name, folder, text in bad:
            if not list(problems_of(pathlib.Path(name), folder, text)):
                sys.exit(f"self-test: {text.strip()} in {name} was not found")
        print(f"self-test: {len(bad)} violations found")
        return
    source = pathlib.Path(sys.argv[1])
    for folder in (source / "core").glob("*/CMakeLists.txt"):
        if folder.parent.name not in CORE_FOLDERS:
            sys.exit(f"check_includes: core/{folder.parent.name} is not in CORE_FOLDERS")
    problems, files = [], 0
    for folder in MAY:
        for path in sorted((source / folder).rglob("*")):
            if path.suffix in (".h", ".cc", ".c", ".cu", ".i"):
                files += 1
                problems += problems_of(path, folder, path.read_text())
    if files < 50:
        sys.exit(f"only {files} files were found under {source}")
    print("\n".join(problems) or f"{files} files follow the arrows")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

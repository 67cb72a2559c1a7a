#!/usr/bin/env python3
"""Every function of the C library is offered by every binding, or it is said here why not.

check_bindings.py SOURCE [--self-test]

A binding offers what its hand-written part calls, in its own language through the raw module or in its C. The raw modules have
nearly everything, since SWIG makes them of the header; what nobody calls there, no user reaches.
"""

import pathlib
import re
import sys

C_CALL = re.compile(r"\b(dsgd_\w+)\s*\(")
# Binding: files of its hand-written part, and what a reference looks like in them.
PARTS = {
    "python": [("bindings/python/dsgd/*.py", re.compile(r"\b_raw\.(dsgd_\w+)")), ("bindings/python/src/*.[ci]", C_CALL)],
    "java": [("bindings/java/src/main/java/**/*.java", re.compile(r"\bRaw(?:\.|::)(dsgd_\w+)")),
             ("bindings/java/native/*.c", C_CALL), ("bindings/java/*.i", C_CALL)],
    "go": [("bindings/go/*.go", re.compile(r"\braw\.D(sgd_\w+)")), ("bindings/go/*.i", C_CALL)],
}

PLUGIN = "plug-ins are tables of C functions; registering them is C's"
STATUS = "the failed call has returned it"
STRUCT = "a macro of the interface file calls it"
TABLES = "the generated tables have it"
COMMON = {
    "dsgd_algorithm_init": PLUGIN,
    "dsgd_algorithm_register": PLUGIN,
    "dsgd_placement_begin": PLUGIN,
    "dsgd_placement_count": PLUGIN,
    "dsgd_placement_options": PLUGIN,
    "dsgd_placement_parameter": PLUGIN,
    "dsgd_placement_size": PLUGIN,
    "dsgd_schedule_add": PLUGIN,
    "dsgd_strategy_init": PLUGIN,
    "dsgd_strategy_register": PLUGIN,
    "dsgd_init": "dsgd_init_begin and waits that an exception or a context can end",
    "dsgd_log_fd": "the layer waits with dsgd_log_poll",
    "dsgd_config_log_hook": "no callbacks from foreign threads into a runtime; records come by dsgd_log_poll",
    "dsgd_error_code": STATUS,
    "dsgd_op_user_data": "the layer has a table of its operations, by id or handle",
    "dsgd_dtype_size": TABLES,
    "dsgd_status_name": TABLES,
    "dsgd_config_key_init": STRUCT,
    "dsgd_session_info_init": STRUCT,
    "dsgd_step_result_init": STRUCT,
    "dsgd_job_status": "people and scripts ask with `dsgd status`, not a trainer",
    "dsgd_job_scale": "people and scripts ask with `dsgd scale`, not a trainer",
    "dsgd_finalize": "closing and freeing are two things where a collector frees",
}
NOT_OFFERED = {
    "python": {
        **COMMON,
        "dsgd_parameter_name": "the object of the parameter keeps its name",
        "dsgd_step": "dsgd_step_begin and waits in slices, between which Python handles signals",
        "dsgd_version": "dsgd_version_string serves",
    },
    "java": {
        **COMMON,
        "dsgd_step": "step() begins an operation and waits for it in slices, between which it notices an interrupt",
    },
    "go": {
        **COMMON,
        "dsgd_memory_gradient": "dsgd_alloc has given the address",
        "dsgd_memory_value": "dsgd_alloc has given the address",
        "dsgd_queue_fd": "Op.Done() is a channel, which is what Go programs select on",
    },
}


def functions(version_script):
    return set(re.findall(r"^\s*(dsgd_\w+);", version_script, re.MULTILINE))


def without_comments(text, suffix):
    pattern = r"#[^\n]*" if suffix == ".py" else r"/\*.*?\*/|//[^\n]*"
    return re.sub(pattern, "", text, flags=re.DOTALL)


def references(text, suffix, pattern):
    found = set(pattern.findall(without_comments(text, suffix)))
    return {"d" + name if name.startswith("sgd_") else name for name in found}


def problems(public, offered, excused, binding):
    for name in sorted(public - offered - excused.keys()):
        yield f"{binding}: nothing of its hand-written layer calls {name}; offer it, or say in check_bindings.py why not"
    for name in sorted(excused.keys() & offered):
        yield f"{binding}: {name} is offered; take it off the list of what is not"
    for name in sorted(excused.keys() - public):
        yield f"{binding}: there is no function {name}; take it off the list of what is not offered"


def self_test():
    python, java, go = (PARTS[binding][0][1] for binding in ("python", "java", "go"))
    cases = [
        ("status = _raw.dsgd_step(a)  # not _raw.dsgd_rank", ".py", python, {"dsgd_step"}),
        ("super(Raw::dsgd_op_free); Raw.dsgd_rank(h); /* Raw.dsgd_size */ // Raw.dsgd_view", ".java", java,
         {"dsgd_op_free", "dsgd_rank"}),
        ("raw.Dsgd_queue_poll(s) // raw.Dsgd_queue_fd", ".go", go, {"dsgd_queue_poll"}),
        ("dsgd_error_free(error); dsgd_error *dsgd_error_rank;", ".c", C_CALL, {"dsgd_error_free"}),
    ]
    for text, suffix, pattern, wanted in cases:
        found = references(text, suffix, pattern)
        if found != wanted:
            sys.exit(f"self-test: {found} instead of {wanted} in: {text}")
    if functions("  global:\n    dsgd_rank;\n    dsgd_size;\n") != {"dsgd_rank", "dsgd_size"}:
        sys.exit("self-test: the version script is not understood")
    told = list(problems({"dsgd_a", "dsgd_b", "dsgd_c"}, {"dsgd_a", "dsgd_b"}, {"dsgd_b": "", "dsgd_d": ""}, "x"))
    if [re.search(r"dsgd_\w", line)[0] for line in told] != ["dsgd_c", "dsgd_b", "dsgd_d"]:
        sys.exit(f"self-test: {told}")


def main():
    if "--self-test" in sys.argv:
        return self_test()
    root = pathlib.Path(sys.argv[1])
    public = functions((root / "capi/dsgd.map").read_text())
    told = []
    for binding, parts in PARTS.items():
        offered = set()
        for files, pattern in parts:
            paths = [path for path in root.glob(files) if not path.name.endswith("_test.go")]
            if not paths:
                told.append(f"{binding}: there is no file {files}")
            for path in paths:
                offered |= references(path.read_text(), path.suffix, pattern)
        told += problems(public, offered & public, NOT_OFFERED[binding], binding)
    for line in told:
        print(line)
    sys.exit(1 if told or len(public) < 80 else 0)


if __name__ == "__main__":
    main()

"""_raw.pyi: the functions of the Python extension module, as the typemaps of raw.i make them."""

import re

import header
import languages
import tables

INTERFACES = (tables.BINDINGS / "dsgd.i", tables.BINDINGS / "python/src/raw.i")
INTEGERS = {"int32_t", "int64_t", "uint32_t", "uint64_t", "size_t", "int"}
# Arguments that become one in Python, and their types; None: they become none. The longest match counts.
ARGUMENTS = {
    ("dsgd_error **",): None,
    ("dsgd_group *",): None,
    ("void **", "void **"): None,
    ("void *", "size_t"): "Any",
    ("const void *", "size_t"): "Any",
    ("const void *",): "Any",
    ("const int64_t *", "size_t"): "Sequence[int]",
    ("const size_t *",): "Optional[Sequence[int]]",
    ("dsgd_parameter *const *", "size_t"): "Sequence[Any]",
    ("const dsgd_op_options *",): "Optional[Tuple[int, int, int, int]]",
    ("int64_t *", "size_t", "size_t *"): "Any",
    ("dsgd_op **", "size_t", "int32_t", "size_t *"): "int",
    ("struct DLManagedTensorVersioned *",): "Any",
    ("const char *",): "Text",
    ("void *",): "Optional[int]",
    ("double",): "float",
    ("PyObject *",): "Any",
    **{(integer,): "int" for integer in INTEGERS},
}
# Arguments that become the result.
RESULTS = {
    ("uint64_t *",): "int",
    ("int32_t *",): "bool",
    ("char **",): "str",
    ("dsgd_session **", "dsgd_op **"): "Tuple[Any, Any]",
    ("dsgd_object **", "dsgd_op **"): "Any",
    ("dsgd_step_result *",): "Tuple[Any, ...]",
    ("dsgd_session_info *",): "Tuple[int, int, int, int, int, int, int, int, int]",
    ("dsgd_config_key *",): "Tuple[str, str, str, str, str, str]",
    ("struct DLManagedTensorVersioned **", "struct DLManagedTensorVersioned **"): "Tuple[Any, Any]",
    ("int64_t *", "size_t", "size_t *"): "int",
    ("dsgd_op **", "size_t", "int32_t", "size_t *"): "List[int]",
}
RETURNED = {"const char *": "str", "double": "float", "PyObject *": "Any", **dict.fromkeys(INTEGERS, "int")}
MAY_RETURN_NONE = {"dsgd_config_value", "dsgd_config_new"}


def write(source):
    lines = ["# The extension module: dsgd.h by its own names. Handles are opaque; a failing call raises dsgd.Error.",
             f"# {languages.MADE}",
             "from typing import Any, List, Optional, Sequence, Tuple, Union", "", "Text = Union[str, bytes, None]", ""]
    lines += [f"{e.name}: int" for name, enum in source.enums.items() if name not in tables.C_ONLY for e in enum.enumerators]
    interfaces = "\n".join(path.read_text() for path in INTERFACES)
    lines += [f"{name}: int" for name in source.constants if not hidden(name, interfaces)]
    lines += [""]
    for function in source.functions:
        if not hidden(function.name, interfaces):
            lines.append(stub(function, source))
    own = INTERFACES[1].read_text().split('%include "../../dsgd.i"')[1]
    lines += [stub(function, source) for function in header.functions(own, start="^")]
    return "\n".join(lines) + "\n"


def hidden(name, interfaces):
    """Whether an interface file keeps a function out of the module."""
    for ignored in re.findall(r"^%ignore (\w+);", interfaces, re.MULTILINE):
        if name == ignored:
            return True
    for pattern in re.findall(r'^%rename\("\$ignore", regexmatch\$name="([^"]+)"\) ', interfaces, re.MULTILINE):
        if re.search(pattern, name):
            return True
    sized = re.findall(r"^DSGD_SIZED_STRUCT\((\w+)\)", interfaces, re.MULTILINE)
    return name in {f"{struct}_init" for struct in sized}


def stub(function, source):
    handles = {f"{name} *" for name in source.names} | {f"const {name} *" for name in source.names}
    arguments, results, rest = [], [], list(function.arguments)
    while rest:
        kinds = tuple(argument.type for argument in rest)
        length = next((n for n in range(len(rest), 0, -1) if kinds[:n] in ARGUMENTS or kinds[:n] in RESULTS), 1)
        group, rest = kinds[:length], rest[length:]
        name = function.arguments[len(function.arguments) - len(rest) - length].name
        if group in RESULTS:
            results.append(RESULTS[group])
        elif re.fullmatch(r"dsgd_\w+ \*\*", group[0]) and group not in ARGUMENTS:
            results.append("Any")
            continue
        if group in ARGUMENTS and ARGUMENTS[group]:
            arguments.append(f"{'timeout_ms' if len(group) == 4 else name}: {ARGUMENTS[group]}")
        elif group not in ARGUMENTS and group not in RESULTS:
            if group[0] not in handles:
                raise SystemExit(f"{function.name}: no Python type is known for argument '{group[0]} {name}'; add one to raw_stub.py")
            arguments.append(f"{name}: Any")
    status = any(argument.type == "dsgd_error **" for argument in function.arguments)
    if status or function.result == "void":
        result = " ".join(results) or "None"
    else:
        result = RETURNED.get(function.result, "Any")
    if function.name in MAY_RETURN_NONE:
        result = f"Optional[{result}]"
    return f"def {function.name}({', '.join(arguments)}) -> {result}: ..."

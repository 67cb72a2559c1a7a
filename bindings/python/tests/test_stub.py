"""_raw.pyi describes the extension module: the same names, and functions that take as many arguments."""

import ast
import pathlib

import pytest

import dsgd
from dsgd import _raw

STUB = ast.parse(pathlib.Path(dsgd.__file__).with_name("_raw.pyi").read_text())
FUNCTIONS = {node.name: len(node.args.args) for node in STUB.body if isinstance(node, ast.FunctionDef)}
CONSTANTS = {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)}


def test_the_stub_names_what_the_module_has():
    names = {name for name in dir(_raw) if name.startswith(("dsgd_", "DSGD_"))}
    functions = {name for name in names if callable(getattr(_raw, name))}
    assert functions == FUNCTIONS.keys() and len(functions) > 70
    assert names - functions == CONSTANTS and all(isinstance(getattr(_raw, name), int) for name in CONSTANTS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_as_many_arguments(name):
    # SWIG's message for a wrong number tells the right one.
    with pytest.raises(TypeError) as raised:
        getattr(_raw, name)(*[None] * 20)
    text = str(raised.value)
    expected = {0: "takes no arguments", 1: "takes exactly one argument"}.get(FUNCTIONS[name], f"expected {FUNCTIONS[name]} arguments")
    assert expected in text, text

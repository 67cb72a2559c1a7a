"""Annotations can be evaluated at run time, also without NumPy and typing_extensions, which type checkers take theirs from."""

import subprocess
import sys

EVALUATE = """
import sys
sys.modules["numpy"] = sys.modules["typing_extensions"] = None  # importing them fails
import inspect, typing, dsgd
functions = [value for value in vars(dsgd).values() if inspect.isfunction(value)]
for public in vars(dsgd).values():
    if inspect.isclass(public) and public.__module__.startswith("dsgd"):
        functions += [function for _, function in inspect.getmembers(public, inspect.isfunction)]
for function in functions:
    if function.__module__.startswith("dsgd"):
        typing.get_type_hints(function)
print(sorted(typing.get_type_hints(dsgd.Replica.alloc)), len(functions) > 50)
"""


def test_annotations_need_no_numpy():
    run = subprocess.run([sys.executable, "-c", EVALUATE], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("['parameter', 'return'] True\n", "")

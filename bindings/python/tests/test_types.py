"""A type checker finds no mistake in the package, and knows the types of results."""

import os
import subprocess
import sys
from pathlib import Path

import dsgd
import pytest

pytest.importorskip("mypy")

PROGRAM = """
from typing import Any, Awaitable, Tuple, assert_type
import dsgd, numpy
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[numpy.float32]

with dsgd.init(num_workers=1) as session:
    assert_type(session, dsgd.Session)
    replica = session.add_replica()
    trained = session.add_parameter("w", (2, 3))
    value, gradient = replica.alloc(trained)
    assert_type(gradient, Array)
    untrained = session.add_parameter("mean", 3, trained=False)
    assert_type(replica.alloc(untrained), Tuple[Array, None])
    data: Floats = numpy.ones(4, numpy.float32)
    assert_type(session.allreduce(data), Floats)
    assert_type(session.allgather(data), Array)
    assert_type(session.allgather(data, data), Floats)
    assert_type(session.reduce_scatter(data), Array)
    assert_type(session.barrier_async(), dsgd.Operation[None])
    assert_type(session.step(), dsgd.StepResult)
    assert_type(session.step().step, int)
"""
MISTAKES = """
import dsgd

with dsgd.init(num_workers=1) as session:
    session.step(weight="1")
    session.barrier(3)
    session.add_parameter(7, (2, 3))
    session.nothing()
"""


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """Runs mypy; the first test fills the cache with what mypy knows of NumPy."""
    packages, cache = Path(dsgd.__file__).parents[1], tmp_path_factory.mktemp("cache")
    return lambda *arguments: subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(cache), *arguments],
        env={**os.environ, "MYPYPATH": str(packages)}, cwd="/", capture_output=True, text=True,
    )


def test_package_passes_mypy_strict(mypy):
    run = mypy("-m", "dsgd")
    assert (run.stdout, run.returncode) == ("", 0), run.stderr


def test_program_gets_exact_types(mypy, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = mypy(str(program))
    assert (run.stdout, run.returncode) == ("", 0), run.stderr


def test_mypy_reports_wrong_calls(mypy, tmp_path):
    program = tmp_path / "mistakes.py"
    program.write_text(MISTAKES)
    run = mypy(str(program))
    found = [line.split(":")[1] for line in run.stdout.splitlines() if ": error: " in line]
    assert found == ["5", "6", "7", "8"], run.stdout + run.stderr

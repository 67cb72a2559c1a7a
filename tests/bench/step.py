"""Measures what a step costs besides the gradients; see README.md. The same program as step.c.

Rank 0 prints CSV: language,workers,median_us,p10_us,p90_us.
"""

import argparse
import sys
import time

import dsgd

SHAPES = {"hidden.weight": (64, 128), "hidden.bias": (128,), "output.weight": (128, 10), "output.bias": (10,)}


def percentile(ordered, percent):
    """Nearest rank."""
    return ordered[max((len(ordered) * percent + 99) // 100 - 1, 0)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=2000, help="timed steps; as many go before them to warm up"
    )
    steps = parser.parse_args().steps

    with dsgd.init() as session:
        replica = session.add_replica("cpu")
        values = {}
        for name, shape in SHAPES.items():
            values[name], gradient = replica.alloc(session.add_parameter(name, shape))
            gradient[:] = 1
        session.set_optimizer("sgd", "lr=0.0009765625")  # a power of two: the values can be told exactly
        session.start()

        times = []
        for _ in range(2 * steps):
            began = time.perf_counter_ns()
            session.step(1)
            times.append((time.perf_counter_ns() - began) * 1e-3)

        for name, value in values.items():
            if not (value == -2 * steps / 1024).all():
                sys.exit(f"bench: wrong value: {name} is {value} instead of {-2 * steps / 1024} everywhere")
        if session.rank == 0:
            timed = sorted(times[steps:])
            print("language,workers,median_us,p10_us,p90_us")
            print("python", session.size, *(f"{percentile(timed, p):.2f}" for p in (50, 10, 90)), sep=",")


main()

"""Measures how long a join keeps the steps of the others waiting; see README.md.

join.py [--elements N] [--optimizer NAME] [--workers N] [--joins N]

Further workers join a running job one after the other, train for some steps and leave. Rank 0 notes when each of its steps
ends. A pause is the time between the last step of one view and the first of the next. Prints CSV:
elements,optimizer,workers,joins,step_median_us,pause_median_us,pause_longest_us.
"""

import argparse
import os
import subprocess
import sys
import time

import dsgd

TOGETHER = 20  # steps that a worker makes after it has joined, and that the others make before the next one joins


def add_model(session, elements, optimizer):
    replica = session.add_replica("cpu")
    value, gradient = replica.alloc(session.add_parameter("weight", (elements,)))
    gradient[:] = 1
    session.set_optimizer(optimizer, "lr=0.001")
    session.start()
    return value


def visit(arguments):
    with dsgd.init() as session:
        add_model(session, arguments.elements, arguments.optimizer)
        for _ in range(TOGETHER):
            session.step(1)


def start(arguments, **environment):
    command = [sys.executable, __file__, *arguments.command, "--role", environment.pop("role")]
    return subprocess.Popen(command, env=os.environ | environment)


def stay(arguments):
    """A worker of the first view. Rank 0 measures, and starts those that join."""
    ends, visitor, joins = [], None, 0
    with dsgd.init() as session:
        value = add_model(session, arguments.elements, arguments.optimizer)
        first = session.rank == 0
        while True:
            result = session.step(1)
            ends.append((time.perf_counter_ns(), result.view))
            if result.stop:
                break
            if not first:
                continue
            if visitor and visitor.poll() is not None:
                if visitor.returncode != 0:
                    sys.exit(f"bench: a worker that joined has failed: {visitor.returncode}")
                visitor, begun = None, len(ends)
                if joins == arguments.joins:
                    session.request_stop()
            elif not visitor and joins < arguments.joins and (joins == 0 or len(ends) > begun + TOGETHER):
                joins += 1
                visitor = start(arguments, role="visit", DSGD_RANK="-1")
        if not (value == value[0]).all():
            sys.exit("bench: wrong values")
        if not first:
            return
    pairs = list(zip(ends, ends[1:]))
    steps = sorted(after[0] - before[0] for before, after in pairs if before[1] == after[1])
    pauses = sorted(after[0] - before[0] for before, after in pairs if before[1] != after[1])
    if len(pauses) != arguments.joins:
        sys.exit(f"bench: {len(pauses)} views began instead of {arguments.joins}")
    print("elements,optimizer,workers,joins,step_median_us,pause_median_us,pause_longest_us")
    numbers = (steps[len(steps) // 2], pauses[len(pauses) // 2], pauses[-1])
    print(arguments.elements, arguments.optimizer, arguments.workers, arguments.joins,
          *(f"{number / 1000:.0f}" for number in numbers), sep=",")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=4 << 20)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--workers", type=int, default=2, help="before one joins")
    parser.add_argument("--joins", type=int, default=20)
    parser.add_argument("--role", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.command = [argument for argument in sys.argv[1:]
                         if argument not in ("--role", arguments.role)]
    if arguments.role == "visit":
        return visit(arguments)
    if arguments.role == "stay":
        return stay(arguments)
    keys = {"num_workers": arguments.workers, "min_workers": 1, "max_workers": arguments.workers + 1}
    with dsgd.Head(head="127.0.0.1:0", token="secret", **keys) as head:
        environment = {f"DSGD_{key.upper()}": str(value) for key, value in keys.items()}
        environment |= {"DSGD_HEAD": head.address, "DSGD_TOKEN": "secret", "DSGD_EMBED_HEAD": "never"}
        stays = [start(arguments, role="stay", DSGD_RANK=str(rank), **environment)
                 for rank in range(arguments.workers)]
        sys.exit(max(abs(worker.wait()) for worker in stays))


main()

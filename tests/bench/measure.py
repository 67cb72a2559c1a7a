"""Runs the benchmark programs, interleaved over rounds, and writes CSV files and a report into a folder.

`run` builds the programs and calls this; README.md says what is measured and how.
"""

import argparse
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import report

JOB_SECONDS = 300  # no job takes a tenth of it


class Failed(Exception):
    pass


def rows_of(output, name):
    """The CSV in a program's output, as dictionaries."""
    rows = list(csv.DictReader(output.splitlines()))
    if not rows or None in rows[0] or None in rows[0].values():
        raise Failed(f"{name} printed no table but:\n{output}")
    return rows


def run(name, command, environment):
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=JOB_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{name} has not ended within {JOB_SECONDS} s: {' '.join(command)}") from error
    if done.returncode != 0:
        raise Failed(
            f"{name} failed with status {done.returncode}: {' '.join(command)}\n{done.stderr}{done.stdout}"
        )
    return rows_of(done.stdout, name)


class Programs:
    """The commands that CMake wrote down, and how jobs are made of them."""

    def __init__(self, path, settings):
        self.paths = json.loads(path.read_text())
        self.settings = [word for setting in settings for word in ("--set", setting)]
        # A configuration left in the environment would change what is measured.
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("DSGD_")}
        self.environment.update(self.paths["environment"])

    def limits(self, arguments):
        return run("limits", [self.paths["limits"], *arguments], self.environment)

    def job(self, name, workers, command, transport="tcp", settings=()):
        """One job on this machine, over TCP on loopback or, with a head on one, Unix sockets."""
        words = [word for setting in settings for word in ("--set", setting)] + self.settings
        start = [self.paths["dsgd"], "run", "-n", str(workers), "--no-prefix", *words]
        if transport == "tcp":
            return run(name, [*start, "--", *command], self.environment)
        with tempfile.TemporaryDirectory(prefix="dsgd-bench-") as folder:
            listen = [
                self.paths["dsgd"],
                "head",
                "--listen",
                f"unix:{folder}/head",
                "--num-workers",
                str(workers),
                *words,
            ]
            with subprocess.Popen(
                listen, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as head:
                try:
                    address = head.stdout.readline().strip()
                    if not address:
                        raise Failed(f"{name}: the head did not start:\n{head.stderr.read()}")
                    return run(name, [*start, "--head", address, "--", *command], self.environment)
                finally:
                    head.terminate()


def jobs(programs, options):
    """What a round consists of: (table, function that returns rows)."""
    sizes = ["--sizes", ",".join(options.sizes)]
    operations = ["--rounds", str(options.operations)] if options.operations else []
    found = [("limits", lambda: programs.limits([*sizes, *operations]))]

    def allreduce(workers, transport, algorithm):
        command = [programs.paths["allreduce"], *sizes, *operations]
        name = f"all-reduce, {workers} workers, {transport}, {algorithm}"
        rows = programs.job(name, workers, command, transport, [f"algorithm={algorithm}"])
        return [{"transport": transport, **row} for row in rows]

    def gloo(workers, algorithm):
        command = [programs.paths["gloo"], *sizes, *operations, "--workers", str(workers)]
        rows = run(
            f"Gloo, {workers} workers, {algorithm}", [*command, "--algorithm", algorithm], programs.environment
        )
        return [{"transport": "gloo", **row} for row in rows]

    def step(language, workers):
        command = [*programs.paths["step"][language], "--steps", str(options.steps)]
        return programs.job(f"steps in {language}, {workers} worker{'s' if workers > 1 else ''}", workers, command)

    for workers in options.workers:
        for transport in ("tcp", "unix"):
            for algorithm in ("auto", "direct", "ring"):
                found.append(("allreduce", lambda w=workers, t=transport, a=algorithm: allreduce(w, t, a)))
        if "gloo" in programs.paths:
            for algorithm in ("ring", "ring_chunked", "halving_doubling", "bcube"):
                found.append(("allreduce", lambda w=workers, a=algorithm: gloo(w, a)))
    for language in programs.paths["step"]:
        for workers in (1, 2):
            found.append(("step", lambda l=language, w=workers: step(l, w)))
    return found


def measure(programs, options):
    """Returns the rows of each table, with the number of their round. Each round begins at another place of the list, so that a
    program does not always run after the same one, which may have heated the processor."""
    tables = {"limits": [], "allreduce": [], "step": []}
    work = jobs(programs, options)
    for number in range(options.rounds):
        turn = number * len(work) // options.rounds
        for done, (table, job) in enumerate(work[turn:] + work[:turn]):
            if sys.stderr.isatty():
                print(
                    f"\rround {number + 1} of {options.rounds}, {done + 1} of {len(work)} ",
                    end="",
                    file=sys.stderr,
                )
            tables[table] += [{"round": number + 1, **row} for row in job()]
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return tables


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=pathlib.Path, help="bench/programs.json of a build folder")
    parser.add_argument(
        "output", type=pathlib.Path, help="folder for report.md, allreduce.svg and the CSV files"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often all programs are run")
    parser.add_argument(
        "--sizes",
        type=lambda text: text.split(","),
        default="1K,64K,1M,16M,100M",
        help="bytes per worker; K, M, G are powers of 1024",
    )
    parser.add_argument(
        "--workers",
        type=lambda text: [int(n) for n in text.split(",")],
        default="2,4",
        help="numbers of workers of the all-reduce jobs",
    )
    parser.add_argument(
        "--operations", type=int, help="timed operations per size and round (default: by size, 5 to 200)"
    )
    parser.add_argument("--steps", type=int, default=2000, help="timed steps per round")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="a configuration key for all jobs, as of `dsgd run`; may be repeated",
    )
    options = parser.parse_args()
    for name, least in (("rounds", 1), ("steps", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} {getattr(options, name)}: give at least {least}")

    try:
        programs = Programs(options.programs, options.settings)
        began, load = time.time(), os.getloadavg()
        tables = measure(programs, options)
    except Failed as error:
        sys.exit(f"bench: {error}")
    except FileNotFoundError as error:
        sys.exit(f"bench: {error}; build the target bench_programs first")
    options.output.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        with open(options.output / f"{name}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    conditions = report.Conditions(
        began=began,
        seconds=time.time() - began,
        load_before=load,
        rounds=options.rounds,
        build=programs.paths["build"],
        version=subprocess.run(
            [programs.paths["dsgd"], "version"], capture_output=True, text=True
        ).stdout.strip(),
        settings=options.settings,
    )
    report.write(options.output, tables, conditions)
    print(options.output / "report.md")


if __name__ == "__main__":
    main()

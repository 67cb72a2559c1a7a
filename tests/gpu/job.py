#!/usr/bin/env python3
"""Runs a job of sample trainers and checks it: all workers end with the same bits and enough accuracy; a second run gives the same bits."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

ENOUGH = 97  # lowest accuracy on the test images, in percent


def at_least_one(word):
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def output_of(command, limit):
    """Returns the exit status and the output of a command. Prints the output, also if the command takes too long."""
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        def output():
            file.seek(0)
            return file.read()

        try:
            status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=limit).returncode
        finally:
            print(output(), flush=True)
        return status, output()


def run(says, workers, limit, command):
    """Returns the digest that all workers have. If something is wrong, prints it and returns None."""
    try:
        status, output = output_of(command, limit)
    except subprocess.TimeoutExpired:
        print(f"FAILED: the job has not ended within {limit:g} s")
        return None
    ends, wrong = [], []
    for line in output.splitlines():
        _, found, text = line.partition("] {")
        if not found or '"done"' not in text:
            continue
        try:
            end = json.loads("{" + text)
            ends.append((str(end["digest"]), float(end["accuracy"])))
        except (ValueError, KeyError, TypeError) as error:
            wrong.append(f"a worker's last line is not a trainer's result ({type(error).__name__}: {error}): {line}")
    if status != 0:
        wrong.append(f"the job ended with status {status}")
    if len(ends) != workers:
        wrong.append(f"{len(ends)} of {workers} workers printed a result")
    if len({digest for digest, _ in ends}) > 1:
        wrong.append("the workers' bits differ")
    if any(not accuracy >= ENOUGH for _, accuracy in ends):  # NaN fails, too
        wrong.append(f"a worker's accuracy is less than {ENOUGH} %")
    for rank in range(workers) if says else ():
        if not re.search(rf"^\[{rank}\] .*{re.escape(says)}", output, re.MULTILINE):
            wrong.append(f"rank {rank} does not say '{says}'")
    for what in wrong:
        print(f"FAILED: {what}")
    return None if wrong else ends[0][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", action="store_true", help="no second run")
    parser.add_argument("--once-by-default", action="store_true", help="no second run without the environment variable TEST_ALL_CASES")
    parser.add_argument("--then", metavar="KEY=VALUE", help="make a second run, with this setting added")
    parser.add_argument("--says", metavar="TEXT", default="", help="text that must be in the output of each worker")
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=240, help="time limit of each run (default 240)")
    parser.add_argument("workers", type=at_least_one, help="number of workers")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="`dsgd run` with its arguments")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("FAILED: cut off"))  # an exception, so that the output of the job is printed
    commands = [options.command]
    if options.then:
        commands.append([*options.command[:2], "--set", options.then, *options.command[2:]])
    elif not (options.once or options.once_by_default and not os.environ.get("TEST_ALL_CASES")):
        commands.append(options.command)
    digests = [run(options.says, options.workers, options.limit, command) for command in commands]
    if None in digests:
        return 1
    if digests[0] != digests[-1]:
        print("FAILED: the second run gave other bits")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Runs a job of sample trainers and checks it: all workers end with the same bits, and have learned; a second run gives the same.

job.py WORKERS COMMAND...      WORKERS: how many there are; COMMAND: `dsgd run` with all its words
"""

import json
import subprocess
import sys

ENOUGH = 97  # per cent of the test images


def run(workers, command):
    """The digest that all workers have; None, said why, if something is wrong."""
    job = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(job.stdout)
    ends = []
    for line in job.stdout.splitlines():
        _, found, text = line.partition("] {")
        if found and '"done"' in text:
            ends.append(json.loads("{" + text))
    wrong = []
    if job.returncode != 0:
        wrong.append(f"the job ended with status {job.returncode}")
    if len(ends) != workers:
        wrong.append(f"{len(ends)} of {workers} workers came to an end")
    if len({end["digest"] for end in ends}) > 1:
        wrong.append("the workers' bits differ")
    if any(end["accuracy"] < ENOUGH for end in ends):
        wrong.append(f"less than {ENOUGH} % are right")
    for what in wrong:
        print(f"FAILED: {what}")
    return None if wrong else ends[0]["digest"]


def main():
    if len(sys.argv) < 3 or not sys.argv[1].isdigit():
        print(__doc__)
        return 0 if sys.argv[1:] == ["--help"] else 2
    digests = [run(int(sys.argv[1]), sys.argv[2:]) for _ in range(2)]
    if None in digests:
        return 1
    if digests[0] != digests[1]:
        print("FAILED: the second run gave other bits")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Runs the scripts with workers of every language and compares what they write. README.md has the contract.

    run.py --worker c=build/bin/conformance_worker --worker python="python3 worker.py" [--script NAME ...]

Needs nothing but the standard library.
"""

import argparse
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
JOB_SECONDS = 120
AFTER_FAILURE_SECONDS = 5


_tried = 0
_claims = []  # the sockets that reserve ports


def free_port():
    """Returns a free port below the range that the system uses for outgoing connections, so that none takes it before the head
    binds it. Binding an abstract Unix socket reserves the port among all runs of this script, until this process ends."""
    global _tried
    while True:
        _tried += 1
        port = 10000 + (os.getpid() * 64 + _tried) % 20000
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0dsgd-conformance-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port


def workers_of(script):
    """The number of workers stands in the script's first line: `# workers: 3`."""
    match = re.match(r"# workers: (\d+)$", script.read_text().splitlines()[0])
    if match is None:
        sys.exit(f"{script}: the first line is not '# workers: N'")
    return int(match.group(1))


def run_job(script, commands, folder):
    """Starts one worker per command. Returns what each wrote, by rank. Raises RuntimeError with their output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DSGD_")}
    environment.update(DSGD_HEAD=f"127.0.0.1:{free_port()}", DSGD_NUM_WORKERS=str(len(commands)))
    running = []
    try:
        for rank, command in enumerate(commands):
            result, log = folder / f"result-{rank}", open(folder / f"log-{rank}", "w+")
            environment["DSGD_RANK"] = str(rank)
            process = subprocess.Popen(
                [*shlex.split(command), str(script), str(result)],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )
            running.append((process, result, log))
        deadline = time.monotonic() + JOB_SECONDS
        while any(process.poll() is None for process, _, _ in running) and time.monotonic() < deadline:
            if any(process.returncode for process, _, _ in running):  # the others may wait for the failed one
                deadline = min(deadline, time.monotonic() + AFTER_FAILURE_SECONDS)
            time.sleep(0.01)
    finally:
        for process, _, _ in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    said = []
    for rank, (process, _, log) in enumerate(running):
        log.seek(0)
        text = log.read().strip()
        log.close()
        if process.returncode != 0:
            said.append(f"rank {rank} ({commands[rank]}) ended with {process.returncode}:\n{text}")
    if said:
        raise RuntimeError("\n".join(said))
    return [result.read_text() for _, result, _ in running]


def differences(script, expected, found, expected_name, found_name):
    source = script.read_text().splitlines()
    for rank, (left, right) in enumerate(zip(expected, found)):
        for a, b in zip(left.splitlines() + [""], right.splitlines() + [""]):
            if a != b:
                line = (a or b).split(" ")[0]
                text = source[int(line) - 1] if line.isdigit() else ""
                yield f"rank {rank}, line {line} '{text}': {expected_name} '{a}', {found_name} '{b}'"
                break


def unequal_ranks(script, results):
    """Lines that must be the same on all ranks, whatever the language."""
    same = ("values", "digest", "allreduce", "broadcast", "allgather", "get", "get_array", "step", "overlap")
    source = script.read_text().splitlines()
    for rank, text in enumerate(results[1:], 1):
        for a, b in zip(results[0].splitlines(), text.splitlines()):
            operation = source[int(a.split(" ")[0]) - 1].split(" ")[0]
            if operation in same and a != b:
                yield f"'{source[int(a.split(' ')[0]) - 1]}': rank 0 has '{a}', rank {rank} has '{b}'"


def jobs(names, size, shift):
    """Yields (title, language of each rank). First a job of the first language alone, or one of each language if TEST_ALL_CASES is
    set or the script has one worker. Then mixed jobs from language `shift` on, until each language has been in one."""
    for name in names if os.environ.get("TEST_ALL_CASES") or size == 1 else names[:1]:
        yield f"all {name}", [name] * size
    for first in range(shift, shift + len(names), size) if len(names) > 1 and size > 1 else ():
        mixed = [names[(first + rank) % len(names)] for rank in range(size)]
        yield f"mixed {','.join(mixed)}", mixed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", action="append", required=True, metavar="LANGUAGE=COMMAND",
                        help="the first one is what the others are compared with")
    parser.add_argument("--script", action="append", help="name of a script; default: all")
    options = parser.parse_args()
    commands = dict(worker.split("=", 1) for worker in options.worker)
    scripts = sorted((HERE / "scripts").glob("*.txt"))
    if options.script:
        scripts = [script for script in scripts if script.stem in options.script]
    if not scripts:
        sys.exit(f"no script named {options.script} in {HERE / 'scripts'}")
    failures = 0
    for script in scripts:
        expected, expected_title = None, ""
        shift = sum(script.stem.encode())  # another mixture for each script, the same in every run
        for title, languages in jobs(list(commands), workers_of(script), shift):
            began = time.monotonic()
            try:
                with tempfile.TemporaryDirectory() as folder:
                    found = run_job(script, [commands[name] for name in languages], pathlib.Path(folder))
            except RuntimeError as error:
                problems = [str(error)]
            else:
                problems = list(unequal_ranks(script, found))
                if expected is None:
                    expected, expected_title = found, title
                problems += differences(script, expected, found, expected_title, title)
            print(f"{'ok  ' if not problems else 'FAIL'} {script.stem}: {title} ({time.monotonic() - began:.1f} s)",
                  *problems, sep="\n     ", flush=True)
            failures += bool(problems)
    sys.exit(f"{failures} jobs failed" if failures else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Takes a worker from a job in mid-training: the others end by themselves, in time, with an error that names it."""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time

LEASE = 3  # seconds
# Time that may come on top: NCCL's abort, the end of a process that has used a GPU, and a busy machine.
MARGIN = 10

class Process:
    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, text=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.lines, self.over, self.changed = [], False, threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def line(self, text, deadline, start=0):
        """The first line with this text, from the given one on; None if there is none in time, or by the end of the output."""
        found = []
        with self.changed:
            self.changed.wait_for(lambda: found.extend(line for line in self.lines[start:] if text in line) or found or self.over,
                                  deadline - time.monotonic())
        return found[0] if found else None

    def status(self, deadline):
        """The exit status; None if it has not ended in time."""
        try:
            return self.process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None


def split(words):
    commands = [[]]
    for word in words:
        if word == ":":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def lose_worker(name, dsgd, commands, limit, processes):
    """What is wrong; "" if nothing is. All that is started goes into `processes`."""
    count = len(commands)
    head = Process([dsgd, "head", "--listen", "127.0.0.1:0", "--num-workers", str(count), "--set", f"lease={LEASE}s",
                    "--set", "log_level=error"])  # so that its first line is the address
    processes["head"] = head
    begin = time.monotonic() + limit
    address = head.line("127.0.0.1:", begin)
    if not address:
        return "the head did not begin"
    for rank, command in enumerate(commands):
        processes[f"rank {rank}"] = Process(command, {
            "DSGD_HEAD": address, "DSGD_NUM_WORKERS": str(count), "DSGD_RANK": str(rank), "DSGD_EMBED_HEAD": "never",
            "DSGD_LEASE": f"{LEASE}s"})
    *others, victim = (processes[f"rank {rank}"] for rank in range(count))
    for process in (*others, victim):
        if not process.line('"epoch": 2,', begin):
            return "not all came to the second epoch"
    said = [len(process.lines) for process in others]  # ignore lines printed before the signal
    os.kill(victim.process.pid, getattr(signal, f"SIG{name}"))
    hit = time.monotonic()
    wrong = []
    for rank, process in enumerate(others):
        status = process.status(hit + LEASE + MARGIN)
        print(f"rank {rank} ended after {time.monotonic() - hit:.1f} s with status {status}")
        if status is None:
            wrong.append(f"rank {rank} has not ended within {LEASE + MARGIN} s")
        elif status != 1:
            wrong.append(f"rank {rank} ended with status {status} instead of the trainer's 1")
        elif not process.line(f"rank {count - 1} (", time.monotonic() + MARGIN, said[rank]):
            wrong.append(f"rank {rank} does not name rank {count - 1}")
    return "; ".join(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=120, help="time limit until all workers train (default 120)")
    parser.add_argument("signal", choices=("KILL", "STOP"))
    parser.add_argument("dsgd", help="the program")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="of each worker, with : in between; the signal goes to the last one")
    options = parser.parse_args()
    commands = split(options.command)
    if len(commands) < 2 or not all(commands):
        parser.error("two workers' commands at least are needed, with : in between")
    processes = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("FAILED: cut off"))  # so that none is left, and what they have said is printed
    try:
        wrong = lose_worker(options.signal, options.dsgd, commands, options.limit, processes)
    finally:
        for process in processes.values():
            process.process.kill()
            process.process.wait()
        for name, process in processes.items():
            print("\n".join(f"[{name}] {line}" for line in process.lines[-20:]), flush=True)
    if wrong:
        print(f"FAILED: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

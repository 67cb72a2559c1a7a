#!/usr/bin/env python3
"""A `dsgd run` with its own head asks the head about its workers, and about those that others have started.

run_job.py DSGD LOSS_WORKER

Another `dsgd run --join` starts a worker of its job. So the job has enough workers when one of its own is killed, and goes on.
A dsgd run with one worker, which is killed, starts another one and the job goes on, too. Without a restart it fails, since its
head ends.

Then each command ends with status 0 and leaves its worker behind. The workers are killed, and dsgd run says so and fails.
"""
import os
import signal
import subprocess
import sys
import tempfile

DESERTS = """
"$WORKER" $DSGD_RANK 100000 100001 1000 >"$FOLDER/$DSGD_RANK" &
until grep -q "^step " "$FOLDER/$DSGD_RANK"; do sleep 0.1; done
"""


def lose_with_others(dsgd, worker, environment, own_workers, options, expected):
    environment = environment | {"DSGD_TOKEN": "secret"}
    workers = str(own_workers)
    settings = ["--set", f"min_workers={workers}", "--set", f"max_workers={own_workers + 1}", "--set", "lease=2s"]
    steps = ["100000", "100001", "10000"]
    pipes = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    script = f'echo "pid $$"; exec "{worker}" $DSGD_RANK {" ".join(steps)}'
    own = subprocess.Popen([dsgd, "run", "-n", workers, *options, *settings, "--", "sh", "-c", script], **pipes)
    joined, pids, lines, killed = None, {}, [], False
    for line in own.stdout:
        name, _, rest = line.rstrip("\n").partition("] ")
        words = rest.split()
        if line.startswith("dsgd run: the head listens at "):
            head = line.split()[6]
        if words[:1] == ["pid"]:
            pids[name] = int(words[1])
        if words[:1] != ["step"]:
            lines.append(line[:200])
            continue
        if not joined:
            joined = subprocess.Popen([dsgd, "run", "--join", "-n", "1", "--head", head, "--num-workers", workers, *settings, "--", worker,
                                       "7", *steps], **pipes)
        size = int(words[3])
        if size == own_workers + 1 and not killed:
            os.kill(pids.pop(f"[{own_workers - 1}"), signal.SIGKILL)
            killed = True
        elif killed and size == 2 and name in pids:
            os.kill(pids[name], signal.SIGTERM)  # stops all workers after the same step
            pids = {}
    other = joined.communicate(timeout=100)[0] if joined else ""
    status = own.wait(timeout=100)
    if status == expected and killed and ("] values " in other) == (expected == 0):
        return 0
    print("FAILED:", f"{workers} own workers, {options}: dsgd run ended with {status}",
          *(line[:100] for line in lines[-20:] + other.splitlines()[-20:]), sep="\n  ")
    return 1


def desert(dsgd, worker, environment):
    for settings in ([], ["--set", "min_workers=1"]):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run([dsgd, "run", "-n", "2", *settings, "--", "sh", "-c", DESERTS],
                                    env=environment | {"FOLDER": folder, "WORKER": worker}, stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True, timeout=100)
        if result.returncode != 1 or "] sh has ended before its worker, which was killed" not in result.stderr:
            print("FAILED:", settings, f"dsgd run ended with status {result.returncode}", result.stderr, sep="\n  ")
            return 1
    return 0


def main():
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DSGD_")}
    programs = sys.argv[1:]
    return (lose_with_others(*programs, environment, 2, [], 0) or lose_with_others(*programs, environment, 1, ["--restarts", "1"], 0) or
            lose_with_others(*programs, environment, 1, [], 128 + signal.SIGKILL) or desert(*programs, environment))


if __name__ == "__main__":
    sys.exit(main())

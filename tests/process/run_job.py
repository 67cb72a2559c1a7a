#!/usr/bin/env python3
"""What a `dsgd run` with its own head knows of the workers.

run_job.py DSGD LOSS_WORKER

Another `dsgd run --join` starts a worker of its job. So the job has enough workers when one of its own is killed, and goes on.

Then each command ends with status 0 and leaves its worker behind. The workers are killed, and dsgd run says so and fails.
"""
import os
import signal
import subprocess
import sys
import tempfile

ELASTIC = ["--set", "min_workers=2", "--set", "max_workers=3", "--set", "lease=2s"]

DESERTS = """
"$WORKER" $DSGD_RANK 100000 100001 1000 >"$FOLDER/$DSGD_RANK" &
until grep -q "^step " "$FOLDER/$DSGD_RANK"; do sleep 0.1; done
"""


def lose_with_others(dsgd, worker, environment):
    environment = environment | {"DSGD_TOKEN": "secret"}
    command = ["--", worker, "0", "100000", "100001", "10000"]
    own = subprocess.Popen([dsgd, "run", "-n", "2", *ELASTIC, "--", "sh", "-c", f'echo "pid $$"; exec "{worker}" $DSGD_RANK 100000 100001 10000'],
                           env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
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
            joined = subprocess.Popen([dsgd, "run", "--join", "-n", "1", "--head", head, "--num-workers", "2", *ELASTIC, *command[:2], "2",
                                       *command[3:]], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        size = int(words[3])
        if size == 3 and not killed:
            os.kill(pids["[1"], signal.SIGKILL)
            killed = True
        elif killed and size == 2 and pids:
            os.kill(pids["[0"], signal.SIGTERM)  # stops all workers after the same step
            pids = {}
    other = joined.communicate(timeout=100)[0] if joined else ""
    statuses = own.wait(timeout=100), joined.returncode if joined else None
    if statuses == (0, 0) and killed and not pids and "values " in other:
        return 0
    print("FAILED:", f"the two dsgd run ended with {statuses}", *(line[:100] for line in lines[-20:] + other.splitlines()[-20:]), sep="\n  ")
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
    return lose_with_others(*sys.argv[1:], environment) or desert(*sys.argv[1:], environment)


if __name__ == "__main__":
    sys.exit(main())

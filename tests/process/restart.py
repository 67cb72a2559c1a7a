#!/usr/bin/env python3
"""`dsgd run --restarts` starts a worker that has died again, and it joins the job that the others have gone on with. If that
job is over, it starts all workers again.

restart.py DSGD LOSS_WORKER WORKER

Worker 1 of three kills itself in step 20 (loss_worker.c). The one that is started in its place has number 4, so the steps
tell it from the first. The job lasts until it has taken part in a step.

Then the replacement is killed, too. No restart is left, and the others train to the end.

Then both workers of a job are killed at once. Those that are started in their places can join no job, and do not count as
restarts.

Then a worker hangs and is evicted (straggler_timeout). Its process ignores SIGTERM. The one that is started in its place takes
part in steps.

Then the program file is absent while a worker is replaced. The other worker goes on. The replacement is tried again, and takes
part in steps once the file is back.

Then a worker is killed and replaced while nobody reads the output of dsgd run.

At last one of two workers (worker.c) closes its session, and its script goes on. Then the other is killed, which ends the job.
The script runs to its end, and nothing is started again.
"""
import os
import signal
import subprocess
import sys
import tempfile
import threading

SCRIPT = """
if [ $DSGD_RANK = 1 ] && mkdir "$FOLDER/died" 2>/dev/null; then exec "$WORKER" 1 100000 300 1000 20; fi
if [ $DSGD_RANK = 1 ]; then exec "$WORKER" 4 60 300 1000; fi
exec "$WORKER" $DSGD_RANK 60 300 20000
"""

TWICE = """
if [ $DSGD_RANK = 1 ] && mkdir "$FOLDER/died" 2>/dev/null; then exec "$WORKER" 1 100000 300 1000 20; fi
if [ $DSGD_RANK = 1 ]; then kill -9 $$; fi
exec "$WORKER" $DSGD_RANK 60 300 20000
"""

AT_ONCE = """
if mkdir "$FOLDER/$DSGD_RANK" 2>/dev/null; then echo "pid $$"; exec "$WORKER" $DSGD_RANK 100000 300 1000; fi
"$WORKER" $DSGD_RANK 20 300 1000 >"$FOLDER/$$"
cat "$FOLDER/$$"
! grep -q '^failed ' "$FOLDER/$$"
"""

LAST = """
if [ $DSGD_RANK = 1 ]; then echo "pid $$"; exec "$WORKER" leave 0 1000; fi
"$WORKER" leave 0 &
echo "pid $!"
wait $!
echo left
read line <"$FOLDER/end" && echo saved
"""

HANGS = """
if [ $DSGD_RANK = 1 ] && mkdir "$FOLDER/hung" 2>/dev/null; then
  trap "" TERM
  "$WORKER" 1 4000 4001 1000000000
  exec sleep 1000
fi
echo "pid $$"
exec "$WORKER" $DSGD_RANK 4000 4001 10000
"""

PROGRAM = """#!/bin/sh
echo "pid $$"
exec "$WORKER" $DSGD_RANK 4000 4001 10000
"""

UNREAD = """
echo unread
echo "pid $DSGD_RANK $$" >&$SEEN
exec "$WORKER" $DSGD_RANK 500 500 50000 >&$SEEN
"""


def run_three(script, dsgd, worker, environment):
    """Runs three workers, with one restart, to their end."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [dsgd, "run", "-n", "3", "--restarts", "1", "--set", "min_workers=2", "--set", "lease=2s", "--", "sh", "-c", script],
            env=environment | {"FOLDER": folder, "WORKER": worker}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            timeout=100)


def lose_one(dsgd, worker, environment):
    result = run_three(SCRIPT, dsgd, worker, environment)
    problems = []
    if result.returncode != 0:
        problems.append(f"dsgd run ended with status {result.returncode}")
    if "was killed by signal 9; it is started again" not in result.stderr:
        problems.append("dsgd run does not say that it starts the worker again")
    lines = [line.partition("] ")[::2] for line in result.stdout.splitlines()]
    values = {rest for _, rest in lines if rest.startswith("values ")}
    ended = sum(rest.startswith("values ") for _, rest in lines)
    if ended != 3 or len(values) != 1:
        problems.append(f"{ended} workers have ended, with {len(values)} different models")
    used = set()
    for rank, rest in lines:
        if rank == "[0" and rest.startswith("step "):
            _, _, _, _, weight, change, _ = rest.split()
            used.add(round(float(weight) * float(change)))
    for expected, what in ((0b00111, "all three"), (0b10101, "the new one and not the old one")):
        if expected not in used:
            problems.append(f"no step has used {what}: {sorted(used)}")
    if problems:
        print("FAILED:", *problems, *(line[:100] for line in result.stdout.splitlines()[-40:]), result.stderr, sep="\n  ")
    return bool(problems)


def lose_replacement(dsgd, worker, environment):
    result = run_three(TWICE, dsgd, worker, environment)
    killed = [line for line in result.stderr.splitlines() if "was killed by signal 9" in line]
    told = [line.partition("; ")[2] for line in killed]
    if result.returncode == 0 and told == ["it is started again (restart 1 of 1)", "no restart is left"]:
        return 0
    print("FAILED:", f"dsgd run ended with status {result.returncode}", result.stderr, sep="\n  ")
    return 1


def lose_all(dsgd, worker, environment):
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.Popen(
            [dsgd, "run", "-n", "2", "--restarts", "2", "--set", "min_workers=1", "--set", "lease=2s", "--", "sh", "-c", AT_ONCE],
            env=environment | {"FOLDER": folder, "WORKER": worker}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        pids, models = [], []
        for line in job.stdout:
            name, _, rest = line.rstrip("\n").partition("] ")
            if rest.startswith("pid "):
                pids.append(int(rest.split()[1]))
            if rest.startswith("step ") and len(pids) == 2:
                for number in (signal.SIGSTOP, signal.SIGKILL):
                    for pid in pids:
                        os.kill(pid, number)
                pids.append(0)
            if rest.startswith("values "):
                models.append(rest)
        errors = job.stderr.read()
        status = job.wait(timeout=100)
    problems = []
    if status != 0:
        problems.append(f"dsgd run ended with status {status}")
    if "starting all workers again (restart 1 of 2)" not in errors:
        problems.append("dsgd run does not start all workers again")
    if len(models) != 2 or len(set(models)) != 1:
        problems.append(f"{len(models)} workers have ended, with {len(set(models))} different models")
    if problems:
        print("FAILED:", *problems, errors, sep="\n  ")
    return bool(problems)


def lose_stuck(dsgd, worker, environment):
    with tempfile.TemporaryDirectory() as folder:
        settings = ["min_workers=2", "lease=1s", "straggler_timeout=1s"]
        job = subprocess.Popen(
            [dsgd, "run", "-n", "3", "--restarts", "1", "--grace", "1", *(word for one in settings for word in ("--set", one)), "--",
             "sh", "-c", HANGS],
            env=environment | {"FOLDER": folder, "WORKER": worker}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        pid, models, lines = None, [], []
        for line in job.stdout:
            name, _, rest = line.rstrip("\n").partition("] ")
            if name == "[0" and rest.startswith("pid "):
                pid = int(rest.split()[1])
            if name == "[1" and rest.startswith("step ") and pid:
                os.kill(pid, signal.SIGTERM)  # stops all workers after the same step
                pid = None
            if rest.startswith("values "):
                models.append(rest)
            elif not rest.startswith("step "):
                lines.append(line)
        status = job.wait(timeout=100)
    killed = "was killed by signal 9; it is started again" in "".join(lines)
    if status == 0 and killed and len(models) == 3 and len(set(models)) == 1:
        return 0
    print("FAILED:", f"dsgd run ended with status {status}", f"{len(models)} workers have ended, with {len(set(models))} models",
          f"the worker that hung was {'' if killed else 'not '}killed", *lines[-40:], sep="\n  ")
    return 1


def lose_program(dsgd, worker, environment):
    with tempfile.TemporaryDirectory() as folder:
        program, absent = os.path.join(folder, "program"), os.path.join(folder, "absent")
        with open(program, "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        os.chmod(program, 0o755)
        job = subprocess.Popen(
            [dsgd, "run", "-n", "2", "--restarts", "100", "--set", "min_workers=1", "--set", "lease=2s", "--", program],
            env=environment | {"WORKER": worker}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        pids, models, lines, killed = {}, [], [], False
        for line in job.stdout:
            name, _, rest = line.rstrip("\n").partition("] ")
            if rest.startswith("pid "):
                pids[name] = int(rest.split()[1])
            if name == "[1" and rest.startswith("step "):
                if not killed:
                    os.rename(program, absent)
                    os.kill(pids["[1"], signal.SIGKILL)
                elif "[1" in pids:
                    os.kill(pids["[1"], signal.SIGTERM)  # stops all workers after the same step
                pids.pop("[1", None)
                killed = True
            if rest.startswith("values "):
                models.append(rest)
            elif not rest.startswith("step "):
                lines.append(line)
            if "was killed by signal 9; cannot start it again: cannot run '" in line:
                os.rename(absent, program)
        status = job.wait(timeout=100)
    tried_again = any(line.startswith("dsgd run: worker 1 is missing; it is started again (restart ") for line in lines)
    if status == 0 and tried_again and len(models) == 2 and len(set(models)) == 1:
        return 0
    print("FAILED:", f"dsgd run ended with status {status}", f"{len(models)} workers have ended, with {len(set(models))} models",
          *lines[-40:], sep="\n  ")
    return 1


def lose_unread(dsgd, worker, environment):
    output, full = os.pipe()
    seen, seen_by_workers = os.pipe()
    os.set_blocking(full, False)
    try:
        while os.write(full, bytes(4096)):
            pass
    except BlockingIOError:
        os.set_blocking(full, True)
    job = subprocess.Popen(
        [dsgd, "run", "-n", "2", "--restarts", "1", "--set", "min_workers=1", "--set", "lease=2s", "--", "sh", "-c", UNREAD],
        env=environment | {"WORKER": worker, "SEEN": str(seen_by_workers)}, stdout=full, stderr=full, pass_fds=[seen_by_workers])
    os.close(full)
    os.close(seen_by_workers)
    timer = threading.Timer(60, job.kill)
    timer.start()
    pids, killed, models, last = [], False, [], ""
    with open(seen, encoding="utf-8") as lines:
        for line in lines:
            last = line[:100]
            words = line.split()
            if words[0] == "pid" and words[1] == "1":
                pids.append(int(words[2]))
            if words[0] == "step" and pids and not killed:
                os.kill(pids[0], signal.SIGKILL)
                killed = True
            if words[0] == "step" and words[3] == "2" and len(pids) == 2:
                os.kill(pids.pop(), signal.SIGTERM)  # stops all workers after the same step
            if words[0] == "values":
                models.append(line)
                if len(models) == 2:
                    break
    with open(output, encoding="utf-8") as lines:
        text = lines.read().replace("\0", "")
    status = job.wait()
    timer.cancel()
    if status == 0 and len(models) == 2 and len(set(models)) == 1 and text.count("unread\n") == 3:
        return 0
    print("FAILED:", f"dsgd run ended with status {status}", f"{len(models)} workers have ended, with {len(set(models))} models",
          last, text, sep="\n  ")
    return 1


def lose_last(dsgd, worker, environment):
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(os.path.join(folder, "end"))
        end = os.open(os.path.join(folder, "end"), os.O_RDWR)
        job = subprocess.Popen(
            [dsgd, "run", "-n", "2", "--restarts", "1", "--set", "min_workers=1", "--set", "lease=2s", "--", "sh", "-c", LAST],
            env=environment | {"FOLDER": folder, "WORKER": worker}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        pids, lines = {}, []
        for line in job.stdout:
            lines.append(line)
            name, _, rest = line.rstrip("\n").partition("] ")
            if rest.startswith("pid "):
                pids[name] = int(rest.split()[1])
            if rest == "joined 0":
                os.kill(pids["[0"], signal.SIGUSR1)
            if rest == "left":
                os.kill(pids["[1"], signal.SIGKILL)
            if "was killed by signal 9" in rest:  # dsgd run has looked at the job by now
                os.write(end, b"\n")
            if "starting all workers again" in line:
                job.terminate()
        os.close(end)
        status = job.wait(timeout=100)
    if status == 0 and "[0] saved\n" in lines:
        return 0
    print("FAILED:", f"dsgd run ended with status {status}, and worker 0 has not ended its work", *lines[-40:], sep="\n  ")
    return 1


def main():
    if len(sys.argv) != 4:
        print(__doc__)
        return 2
    dsgd, loss_worker, worker = sys.argv[1:]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DSGD_")}
    return (lose_one(dsgd, loss_worker, environment) or lose_replacement(dsgd, loss_worker, environment) or
            lose_all(dsgd, loss_worker, environment) or
            lose_stuck(dsgd, loss_worker, environment) or lose_program(dsgd, loss_worker, environment) or
            lose_unread(dsgd, loss_worker, environment) or lose_last(dsgd, worker, environment))


if __name__ == "__main__":
    sys.exit(main())

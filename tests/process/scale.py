#!/usr/bin/env python3
"""`dsgd scale` makes `dsgd run` start and stop workers of a running job.

scale.py DSGD WORKER

The job begins with two workers and is scaled to four, to one and to three. Then one worker is killed, and the job is scaled to
three again. The workers are stopped one after the other: worker 0 (loss_worker.c) makes a step with each number between four
and one. Each number is asked for after a step of worker 0 with the previous number. At the end SIGTERM makes worker 0 stop, and
with it the two others; all three have the same values.

In a second job a worker of four is stopped for longer than its lease, and two live workers are wanted, then four.

In a third job a worker of four is silent, and three are wanted at once. dsgd run stops no other worker, since the job could lose
the state of both.

In a fourth job the program file is absent when a worker is to be added. The job goes on, and dsgd scale is called again.

In a fifth job one of three workers is of another dsgd run. For four workers one is added, and for two workers two are stopped.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading


class Job:
    PLAN = [2, 4, 1, 3, 2, 3]
    LOSS = 4  # index in PLAN; the others come from dsgd scale
    LOST = "worker-5", signal.SIGKILL
    LEFT = {"[0", "[4", "[6"}
    STOPPED = 3  # by dsgd run
    SETTINGS = ["min_workers=1", "max_workers=4", "lease=1s", "strategy=ps", "copies=2"]

    def __init__(self, dsgd, worker):
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("DSGD_")}
        self.environment["DSGD_TOKEN"] = "of the test"
        self.dsgd, self.head, self.wanted, self.seen = dsgd, None, list(self.PLAN), []
        self.problems, self.values, self.errors = [], {}, []
        self.process = subprocess.Popen(
            [dsgd, "run", "-n", str(self.PLAN[0]), *(word for setting in self.SETTINGS for word in ("--set", setting)), "--",
             worker, "0", "4000", "4001", "10000"],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read_errors)
        self.reader.start()

    def read_errors(self):
        for line in self.process.stderr:
            self.errors.append(line)
            if line.startswith("dsgd run: the head listens at "):
                self.head = line.split()[6]
            self.see_error(line)

    def see_error(self, line):
        pass

    def ask(self, *words):
        result = subprocess.run([self.dsgd, *words, "--head", self.head], env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
        return result.returncode, result.stdout

    def scale(self, number):
        status, text = self.ask("scale", str(number))
        if status != 0:
            self.problems.append(f"dsgd scale {number} ended with status {status}: {text}")

    def end(self):
        status, text = self.ask("scale", "5")
        if status != 1 or "max_workers = 4" not in text:
            self.problems.append(f"dsgd scale 5 ended with status {status}: {text}")
        status, text = self.ask("status")
        if status != 0 or "3 workers (began with 2; may be 1 to 4), 3 wanted" not in text:
            self.problems.append(f"dsgd status ended with status {status}: {text}")

    def kill(self, worker_id, number):
        _, text = self.ask("status", "--json")
        os.kill(next(worker["pid"] for worker in json.loads(text)["workers"] if worker["worker_id"] == worker_id), number)

    def follow(self):
        for line in self.process.stdout:
            name, _, rest = line.rstrip("\n").partition("] ")
            if rest.startswith("values "):
                self.values[name] = rest
            if name != "[0" or not rest.startswith("step "):
                continue
            size = int(rest.split()[3])
            if not self.seen or self.seen[-1] != size:
                self.seen.append(size)
            if self.wanted and size == self.wanted[0]:
                del self.wanted[0]
                if len(self.wanted) == len(self.PLAN) - self.LOSS:
                    self.kill(*self.LOST)
                elif self.wanted:
                    self.scale(self.wanted[0])
                else:
                    self.end()
                    self.kill("worker-0", signal.SIGTERM)

    def check(self):
        self.follow()
        self.reader.join()
        if self.process.wait() != 0:
            self.problems.append(f"dsgd run ended with status {self.process.returncode}")
        if self.wanted:
            self.problems.append(f"the steps of worker 0 have seen {self.seen} workers, not {self.PLAN}")
        if set(self.values) != self.LEFT or len(set(self.values.values())) != 1:
            self.problems.append(f"{len(set(self.values.values()))} different models, of the workers {sorted(self.values)}")
        if sum("was stopped; the others go on" in line for line in self.errors) != self.STOPPED:
            self.problems.append(f"the number of workers that were stopped is not {self.STOPPED}")
        if self.PLAN == Job.PLAN and ", 4, 3, 2, 1, " not in str(self.seen):
            self.problems.append(f"the steps of worker 0 have seen {self.seen} workers: no steps between two stops")


class JobWithStoppedWorker(Job):
    PLAN = [4, 3, 2, 4]
    LOSS = 1
    LOST = "worker-1", signal.SIGSTOP
    LEFT = {"[0", "[2", "[4", "[5"}
    STOPPED = 1
    SETTINGS = ["min_workers=2", "max_workers=5", "lease=1s"]

    def end(self):
        pass

    def check(self):
        super().check()
        if not any(line.startswith("dsgd run: [1] ") and "has ended; the others go on" in line for line in self.errors):
            self.problems.append("the worker that was stopped has not ended before the others")


class JobWithSilentWorker(Job):
    PLAN = [4, 3]
    LOSS = 1
    LOST = "worker-2", signal.SIGSTOP
    LEFT = {"[0", "[1", "[3"}
    STOPPED = 0
    SETTINGS = ["min_workers=2", "max_workers=4", "lease=3s", "strategy=ps", "copies=2"]
    STEPS = 300  # so many that `dsgd run` has seen each worker step before one is stopped

    def kill(self, worker_id, number):
        if number == signal.SIGSTOP:
            while any((worker["steps"] or 0) < self.STEPS for worker in json.loads(self.ask("status", "--json")[1])["workers"]):
                pass
        super().kill(worker_id, number)
        if number == signal.SIGSTOP:
            self.scale(3)

    def end(self):
        pass


class JobWithoutProgram(Job):
    PLAN = [2, 3]
    LOSS = len(PLAN) + 1  # none
    LEFT = {"[0", "[1", "[2"}
    STOPPED = 0
    SETTINGS = ["min_workers=1", "max_workers=3", "lease=1s"]

    def __init__(self, dsgd, worker):
        self.folder = tempfile.TemporaryDirectory()
        self.program, self.absent = (os.path.join(self.folder.name, name) for name in ("program", "absent"))
        os.symlink(worker, self.program)
        super().__init__(dsgd, self.program)

    def scale(self, number):
        os.rename(self.program, self.absent)
        super().scale(number)

    def see_error(self, line):
        if line.startswith("dsgd run: cannot start worker 2: cannot run '"):
            os.rename(self.absent, self.program)
            super().scale(3)

    def end(self):
        pass


class JobWithForeignWorker(Job):
    PLAN = [2, 3, 4, 2]
    LOSS = len(PLAN) + 1  # none
    LEFT = {"[0"}
    STOPPED = 2
    SETTINGS = ["min_workers=1", "max_workers=5", "lease=1s"]
    other = None

    def scale(self, number):
        if self.other:
            return super().scale(number)
        begin = self.process.args[:2] + ["--join", "-n", "1", "--num-workers", "2", "--head", self.head]
        self.other = subprocess.Popen(begin + self.process.args[4:], env=self.environment, stdout=subprocess.DEVNULL)

    def end(self):
        pass

    def check(self):
        super().check()
        if self.other.wait() != 0:
            self.problems.append(f"the other dsgd run ended with status {self.other.returncode}")


JOBS = Job, JobWithStoppedWorker, JobWithSilentWorker, JobWithoutProgram, JobWithForeignWorker


def run(job):
    try:
        while not job.head and job.process.poll() is None:
            job.reader.join(0.01)
        job.check()
    finally:
        job.process.kill()
        job.process.wait()
    if job.problems:
        print("FAILED:", *job.problems, *(line.rstrip() for line in job.errors[-40:]), sep="\n  ")
    return bool(job.problems)


def main():
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    return any(run(kind(*sys.argv[1:])) for kind in JOBS)


if __name__ == "__main__":
    sys.exit(main())

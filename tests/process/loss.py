#!/usr/bin/env python3
"""Kills, stops and adds workers of real jobs, and checks from what the workers have written that the others have trained on.

loss.py DSGD WORKER... [--jobs N] [--seed S] [--few S,S,...] [--must-have EVENT...] [--report FILE] [--namespaces]

Each job has three to five workers (loss_worker.c), and a head of its own process; in some jobs worker 0 hosts the head instead.
Given several WORKER commands, for example of several languages, each worker of a job runs one of them. Some workers, but not
all, get SIGKILL or SIGSTOP at random times; a stopped one goes on after its lease. Up to two others join while the job runs,
and some of them get a signal, too. In some jobs the head gets SIGKILL up to three times, and is started again each time. With
--namespaces each process is in a network namespace of its own, and some workers are cut off the network instead of stopped.
The checks know nothing of the protocol:

- every worker that was not disturbed ends with all steps since it came, and all of them with the same bytes;
- a step has used each worker at most once, all undisturbed ones that had come, and nobody who was missing in an earlier step
  after having been there;
- all of them have used the same workers in a step;
- each sample of the data set was used once, in a step that an undisturbed worker has made;
- a disturbed worker has seen the same steps as the others up to its end, but perhaps its last;
- at the end the values are those that momentum makes of the steps' means, so no contribution was lost or doubled.

The time from a signal to the first step without the victim, on the last survivor, is reported as a distribution.
"""
import argparse
import collections
import contextlib
import os
import random
import secrets
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

from namespaces import Network

LEASE = "500ms"
CUT = "cut"  # beside SIGKILL and SIGSTOP


def name_of(kind):
    return kind if kind == CUT else signal.Signals(kind).name


def clean_environment(**more):
    return {name: value for name, value in os.environ.items() if not name.startswith("DSGD_")} | more


def language_of(program):
    name = os.path.basename(program.split()[0])
    return "Go" if name.endswith("_go") else "Java" if name == "java" else "Python" if name.startswith("python") else "C"


class Worker:
    def __init__(self, program, number, job, head, token, folder, network=None):
        self.number, self.disturbed, self.signalled, self.network = number, None, None, network
        self.language = language_of(program)
        self.steps, self.drawn, self.values, self.failure, self.code, self.position = [], {}, None, None, None, 0
        self.path = os.path.join(folder, f"worker{number}")
        environment = clean_environment(
            DSGD_HEAD=head, DSGD_TOKEN=token, DSGD_NUM_WORKERS=str(job.workers), DSGD_MIN_WORKERS="1",
            DSGD_MAX_WORKERS=str(job.all), DSGD_LEASE=getattr(job, "lease", LEASE), DSGD_STEP_TIMEOUT="60s",
            DSGD_EMBED_HEAD="auto" if job.embedded and number < job.workers else "never",
            DSGD_STRATEGY=job.strategy, DSGD_COPIES=str(job.copies), DSGD_BUCKET_SIZE=job.bucket,
            DSGD_HEAD_TIMEOUT=getattr(job, "head_timeout", "5s"),
            DSGD_INIT_TIMEOUT="20s")
        if number < job.workers:
            environment["DSGD_RANK"] = str(number)
        command = [*program.split(), str(number), str(job.steps), str(job.elements), str(job.pause), "-1", str(job.samples)]
        if network:
            command = network.command(self.space, *command)
        with open(self.path, "w") as output:
            # Without its log, whose lines could come into one that is written in parts.
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.DEVNULL)

    @property
    def space(self):
        return f"w{self.number}"

    def joined(self):
        with open(self.path) as lines:
            return lines.readline() == "joined\n"

    def disturb(self, kind):
        if self.process.poll() is None:
            self.disturbed, self.signalled = kind, time.monotonic()
            if kind == CUT:
                self.network.cut(self.space)
            else:
                self.process.send_signal(kind)

    def restore(self):
        """Lets a worker that was stopped or cut off go on."""
        if self.disturbed == signal.SIGSTOP:
            self.process.send_signal(signal.SIGCONT)
        elif self.disturbed == CUT:
            self.network.heal(self.space)

    def read(self):
        """Reads the lines that the worker has written since the last call."""
        with open(self.path, "rb") as output:
            output.seek(self.position)
            lines, end, _ = output.read().rpartition(b"\n")
        self.position += len(lines) + len(end)
        for line in lines.decode().splitlines():
            word, _, rest = line.partition(" ")
            if word == "step":
                k, view, size, weight, change, seconds = rest.split()
                self.steps.append((int(k), round(float(change) * float(weight)), float(weight), float(seconds)))
            elif word == "drew":
                k, *indices = map(int, rest.split())
                self.drawn[k] = indices
            elif word == "values":
                self.values = rest
            elif word == "failed":
                self.failure = rest
                code = rest.partition(" ")[0]  # DSGD_ERR_WORKER_LOST in C, without DSGD_ERR_ in Java and Python, ErrWorkerLost in Go
                self.code = code.removeprefix("DSGD_ERR_").removeprefix("Err").replace("_", "").upper()
        self.first = self.steps[0][0] if self.steps else 0

    def at(self, step):
        return self.steps[step - self.first]

    def came_too_late(self, job):
        """The others had made their last step before this one took part. A head that is started then waits for another job."""
        codes = ("UNREACHABLE", "WORKERLOST") + (("TIMEOUT",) if job.head_losses else ())
        return self.number >= job.workers and not self.steps and self.failure and (
            self.code in codes or "the job at this head is over" in self.failure)


class Head:
    def __init__(self, dsgd, job, token, folder, network=None):
        host = network.address("head") if network else "127.0.0.1"
        self.command = [dsgd, "head", "--listen", f"{host}:0", "--num-workers", str(job.workers), "--set", "min_workers=1",
                        "--set", f"max_workers={job.all}", "--set", f"lease={LEASE}"]
        self.state, self.problem = os.path.join(folder, "head"), None
        if job.head_losses:
            self.command += ["--set", f"head_state={self.state}"]
        if network:
            self.command = network.command("head", *self.command)
        self.token, self.address = token, None
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, env=clean_environment(DSGD_TOKEN=self.token), stdout=subprocess.PIPE,
                                        text=True, stderr=subprocess.DEVNULL)
        said = self.process.stdout.readline().split()
        address = said[-1] if said else "no address"
        if not said or address != (self.address or address):
            raise RuntimeError(f"the head was at {self.address}, and is at {address} now")
        self.address = address

    def stop(self):
        self.process.kill()
        self.process.stdout.close()
        return self.process.wait()

    def restart(self, losses):
        """After each of `losses`: a time without signals, and a time without a head."""
        for after, down in losses:
            time.sleep(after)
            if self.stop() != -signal.SIGKILL or not os.path.exists(self.state):  # the job had ended
                return
            time.sleep(down)
            try:
                self.start()
            except RuntimeError as error:
                self.problem = str(error)
                return


class Job:
    def __init__(self, seed, namespaces, one_loss):
        draw = random.Random(seed)
        self.seed, self.workers, self.steps = seed, draw.randint(3, 5), draw.randint(60, 200)
        self.elements = self.steps + draw.choice([200, 5000, 300_000])  # more than there are steps
        self.samples = self.workers * self.steps * draw.randint(1, 4)
        self.strategy, self.bucket = draw.choice(["allreduce", "simple", "ps"]), draw.choice(["16K", "4M"])
        self.pause = draw.choice([0, 1000, 5000])
        victims = draw.sample(range(self.workers), draw.randint(1, self.workers - 1))
        length = 0.02 + self.steps * (self.pause * 1e-6 + 0.0005)
        self.plan = sorted((draw.uniform(0, length), victim, draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))
                           for victim in victims)
        self.copies = len(victims) + 1 if self.strategy == "ps" else 1  # all of them may be lost at once
        self.joins = sorted(draw.uniform(0, length) for _ in range(draw.choice([0, 1, 1, 2])))
        if one_loss:
            self.plan, self.joins = self.plan[:1], []
        self.all, self.sent = self.workers + len(self.joins), collections.Counter()  # the signals that workers got
        # How long the head lives, and how long there is none then, several times.
        self.head_losses = [(draw.uniform(0, length / losses), draw.choice([0, 0.02, 0.1, 0.7]))
                            for losses in [draw.choice([1, 2, 3])] if draw.random() < 0.4 for _ in range(losses)]
        more = random.Random(f"{seed} more")
        self.embedded = draw.random() < 0.3 if namespaces else not one_loss and more.random() < 0.2
        if self.embedded:  # the job ends with worker 0
            self.head_losses, self.plan = [], [(at, victim, kind) for at, victim, kind in self.plan if victim != 0]
        for number, at in enumerate(self.joins if self.strategy != "ps" else [], self.workers):
            if more.random() < 0.3:  # it may not have joined yet
                self.plan.append((at + more.uniform(0.01, 0.4), number, more.choice([signal.SIGKILL, signal.SIGSTOP])))
        self.plan.sort()
        if namespaces:
            self.plan = [(at, victim, CUT if kind == signal.SIGSTOP and draw.random() < 0.6 else kind) for at, victim, kind in self.plan]
        if one_loss:
            self.head_losses = []

    def __str__(self):
        plan = ", ".join(f"{victim} {name_of(kind)} at {at:.3f} s" for at, victim, kind in self.plan)
        return (f"seed {self.seed}: {self.workers} workers, {self.steps} steps of {self.elements} elements, {self.samples} samples, "
                f"{self.strategy}, copies {self.copies}, buckets {self.bucket}, pause {self.pause} us{', worker 0 hosts the head' if self.embedded else ''}; {plan}" + "".join(f", one joins at {at:.3f} s" for at in self.joins) +
                "".join(f", the head is killed after {after:.3f} s and back {down} s later" for after, down in self.head_losses))

    def program(self, number, programs):
        return programs[0] if len(programs) == 1 else random.Random(f"{self.seed} {number}").choice(programs)

    def run(self, dsgd, programs, network):
        """Returns the problems, the times from signals to next steps, and how many workers have joined the running job."""
        token = secrets.token_hex(8)
        with tempfile.TemporaryDirectory() as folder:
            head = None if self.embedded else Head(dsgd, self, token, folder, network)
            address = head.address if head else network.address("w0") + ":7700" if network else f"unix:{folder}/head"
            workers, restarting = [], threading.Thread(target=head.restart if head else lambda _: None, args=[self.head_losses])
            try:
                workers = [Worker(self.program(n, programs), n, self, address, token, folder, network) for n in range(self.workers)]
                while not all(w.joined() for w in workers):  # the job begins with all of them
                    if any(w.process.poll() is not None for w in workers):
                        return ["a worker has ended before the job began"], [], 0
                    time.sleep(0.001)
                begin = time.monotonic()
                events = self.plan + [(at, None, None) for at in self.joins]
                restarting.start()
                for at, victim, kind in sorted(events, key=lambda event: event[0]):
                    time.sleep(max(0, begin + at - time.monotonic()))
                    if victim is None:
                        number = len(workers)
                        workers.append(Worker(self.program(number, programs), number, self, address, token, folder, network))
                    else:
                        workers[victim].disturb(kind)
                late = [w for w in workers if w.disturbed is None and not ended(w.process, 60)]
                if late:
                    return [f"worker {w.number} hangs" for w in late], [], 0
                for worker in workers:
                    worker.restore()
                    if not ended(worker.process, 60):
                        return [f"worker {worker.number} hangs after it was disturbed"], [], 0
                restarting.join()
                if head and head.problem:
                    return [head.problem], [], 0
                for worker in workers:
                    worker.read()
                self.sent.update((self.strategy, w.language, w.disturbed) for w in workers if w.disturbed is not None)
                return self.check(workers), [] if self.head_losses else times(workers), sum(bool(w.steps) for w in workers[self.workers:])
            finally:
                if restarting.ident is not None:
                    restarting.join()
                for worker in workers:
                    worker.process.kill()
                    worker.process.wait()
                    if worker.disturbed == CUT:
                        network.heal(worker.space)
                if head:
                    head.stop()

    def check(self, workers):
        problems = []
        whole = [w for w in workers if w.disturbed is None and not w.came_too_late(self)]
        first = whole[0]
        for worker in workers:
            name = f"worker {worker.number}"
            before = gone = 0
            for k, (step, used, weight, _) in enumerate(worker.steps, worker.first):
                # The others may have repeated the last step of a disturbed worker, with one that has joined.
                repeated = worker.disturbed is not None and step == worker.steps[-1][0]
                # In the last steps workers without samples have weight 0.
                must = sum(1 << w.number for w in whole if w.steps and w.first <= step and (w.number < self.workers or not repeated)
                           and (step < self.steps or w.drawn.get(step)))
                gone |= before & ~used if k < self.steps else 0
                if step != k or bin(used).count("1") != weight or used & must != must or used & gone:
                    problems.append(f"{name}: step {step} has used {used:b} with weight {weight:g} after {before:b}")
                before = used
            if worker.disturbed is None and not worker.came_too_late(self):
                if worker.process.returncode != 0:
                    problems.append(f"{name}: ended with status {worker.process.returncode}")
                if worker.values is None or (worker.steps and worker.steps[-1][0] < self.steps - 1):
                    problems.append(f"{name}: ended after {len(worker.steps)} steps: {worker.failure}")
                elif worker.values != first.values:
                    problems.append(f"{name}: its values differ from those of worker {first.number}")
            last = len(worker.steps) - (worker.disturbed is not None)
            for mine in worker.steps[:last]:
                if mine[0] < first.first or mine[0] >= self.steps:
                    continue
                theirs = first.at(mine[0])
                if mine[1] != theirs[1]:
                    problems.append(f"{name}: step {mine[0]} has used {mine[1]:b}, on worker {first.number} {theirs[1]:b}")
            if (worker.disturbed in (signal.SIGSTOP, CUT) and worker.failure and worker.code not in ("EVICTED", "WORKERLOST")
                    and not worker.came_too_late(self)):
                problems.append(f"{name}: was stopped or cut off, and failed with {worker.failure}")
        times = collections.Counter(
            index for step, used, _, _ in first.steps for w in workers if used >> w.number & 1 for index in w.drawn.get(step, []))
        wrong = [f"{index} {times[index]} times" for index in range(self.samples) if times[index] != 1]
        if wrong and not problems:
            problems.append(f"samples were not used once: {', '.join(wrong[:20])}; {len(wrong)} in all")
        return problems or self.check_values(first)

    def check_values(self, worker):
        """The optimizer is sgd with a rate of 1 and a momentum of 0.5. Step k alone has a gradient in element k."""
        means = [(step, used / weight) for step, used, weight, _ in worker.steps if weight > 0]
        expected = [0.0] * self.elements
        for made, (step, mean) in enumerate(means, 1):
            expected[step] = -mean * (2 - 0.5 ** (len(means) - made))
        seen = struct.unpack(f"<{self.elements}f", bytes.fromhex(worker.values))
        wrong = [step for step in range(self.elements) if abs(seen[step] - expected[step]) > 1e-5 * abs(expected[step])]
        return [f"element {step} is {seen[step]:g} instead of {expected[step]:g}" for step in wrong[:20]]


def ended(process, limit):
    try:
        process.wait(limit)
        return True
    except subprocess.TimeoutExpired:
        return False


def times(workers):
    """From each signal to the end of the first step without the victim, on the last of the undisturbed workers of the first view."""
    found = []
    for victim in workers:
        if victim.signalled is None:
            continue
        ends = [min((seconds for _, used, _, seconds in w.steps if not used & 1 << victim.number), default=0)
                for w in workers if w.disturbed is None and w.first == 0]
        if min(ends) > victim.signalled:
            found.append((victim.disturbed, max(ends) - victim.signalled))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsgd", help="the dsgd program")
    parser.add_argument("worker", nargs="+", help="a command that runs process_loss_worker, or its like in another language")
    parser.add_argument("--jobs", type=int, default=12, help="how many jobs (default 12)")
    parser.add_argument("--seed", type=int, default=1, help="of the first job (default 1)")
    parser.add_argument("--few", help="the seeds of the jobs, with commas, if the environment variable TEST_ALL_CASES is not set; replaces --jobs and --seed")
    parser.add_argument("--must-have", nargs="+", default=[], choices=["kills", "stops", "cuts", "joins", "heads", "embedded"],
                        help="events that the drawn jobs must plan at least once each")
    parser.add_argument("--report", help="a file to write the distribution of times to")
    parser.add_argument("--namespaces", action="store_true", help="run each process in a network namespace; cut some off")
    parser.add_argument("--one-loss", action="store_true", help="lose one worker in each job, and nothing else happens")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.jobs)
    if options.few and not os.environ.get("TEST_ALL_CASES"):
        seeds = [int(seed) for seed in options.few.split(",")]
    seen, sent, planned, joins = {}, collections.Counter(), collections.Counter(), 0
    words = {signal.SIGKILL: "kills", signal.SIGSTOP: "stops", CUT: "cuts"}
    with Network(["head", *(f"w{n}" for n in range(7))]) if options.namespaces else contextlib.nullcontext() as network:
        for made, seed in enumerate(seeds, 1):
            job = Job(seed, options.namespaces, options.one_loss)
            problems, of_job, joined = job.run(options.dsgd, options.worker, network)
            if problems:
                print(f"FAILED: {job}", *problems, sep="\n  ")
                return 1
            sent.update(job.sent)
            planned.update(words[kind] for _, _, kind in job.plan)
            planned.update(joins=len(job.joins), heads=len(job.head_losses), embedded=job.embedded)
            joins += joined
            for kind, seconds in of_job:
                seen.setdefault(kind, []).append(seconds)
            if sys.stdout.isatty() or seed % 50 == 0:
                print(f"{made} of {len(seeds)} jobs", flush=True)
    kinds = collections.Counter()
    for (strategy, language, kind), times_sent in sent.items():
        kinds.update({key: times_sent for key in (kind, (strategy, kind), (language, kind))})
    absent = [event for event in options.must_have if not planned[event]]
    if absent:
        print(f"FAILED: no job has {' or '.join(absent)}; choose other seeds")
        return 1
    lines = [f"{len(seeds)} jobs with {', '.join(f'{kinds[kind]} {word}' for kind, word in words.items())}, {joins} joins "
             f"and {planned['heads']} kills of the head (lease {LEASE}); worker 0 hosted the head of {planned['embedded']} jobs. Every "
             "worker that was left trained on"]
    for key in sorted({key[0] for key in kinds if isinstance(key, tuple)}):
        lines.append(f"{key}: " + ", ".join(f"{kinds[key, kind]} {word}" for kind, word in words.items()))
    for name, values in sorted((name_of(kind), values) for kind, values in seen.items()):
        values.sort()
        at = {share: values[min(len(values) - 1, int(share * len(values)))] for share in (0.5, 0.9, 0.99)}
        lines.append(f"{name}: {len(values)} times until all have ended a step without the worker: median {at[0.5]:.3f} s, "
                     f"p90 {at[0.9]:.3f} s, p99 {at[0.99]:.3f} s, longest {values[-1]:.3f} s")
    print(*lines, sep="\n")
    if options.report:
        with open(options.report, "w") as file:
            print(*lines, sep="\n", file=file)
    return 0


if __name__ == "__main__":
    sys.exit(main())

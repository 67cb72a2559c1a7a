#!/usr/bin/env python3
"""Three heads of a real job keep its state in a real etcd server; the one that serves gets SIGKILL again and again.

etcd_heads.py DSGD WORKER [--kills N] [--report FILE]       without --kills: 3, or 6 with the environment variable TEST_ALL_CASES

Each time another head must take over within two leases, and the killed one is started again and stands by. The workers (loss_worker.c) must train on.
Workers are lost and join after a kill or while no head serves, the head that serves is stopped until another one has taken over and
then goes on, and the server itself is killed and started again, once for less than a lease and once for longer. At the end all
workers that are left hold the same bytes, every head has ended with status 0, and etcd keeps no key of the job.

Prints how long the heads that took over needed, as a distribution. The lease of the heads in etcd is 3 s.
"""
import argparse
import base64
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import urllib.error
import urllib.request

from loss import clean_environment, ended
from running_job import LIMIT, RunningJob

LEASE = 3  # s
HEADS = 3


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Etcd:
    """A server with its data in a folder. Other programs of the machine may take its ports before it does."""

    def __init__(self, folder):
        self.folder, self.process, self.started = os.path.join(folder, "etcd"), None, False
        while self.process is None:
            port, peers = free_ports(2)
            self.address = f"127.0.0.1:{port}"
            self.command = ["etcd", "--data-dir", self.folder, "--log-level", "error",
                            "--listen-client-urls", f"http://{self.address}", "--advertise-client-urls", f"http://{self.address}",
                            "--listen-peer-urls", f"http://127.0.0.1:{peers}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peers}",
                            "--initial-cluster", f"default=http://127.0.0.1:{peers}"]
            self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + LIMIT
        while self.ask("kv/range", {"key": base64.b64encode(b"none").decode()}) is None:
            if self.process.poll() is not None:
                assert not self.started, "etcd does not start again"
                self.process = None
                shutil.rmtree(self.folder, ignore_errors=True)
                return
            assert time.monotonic() < deadline, f"etcd has not started within {LIMIT} s"
            time.sleep(0.05)
        self.started = True

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    def ask(self, path, question):
        """None if the server does not answer."""
        request = urllib.request.Request(f"http://{self.address}/v3/{path}", json.dumps(question).encode())
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError):
            return None

    def keys(self):
        answer = self.ask("kv/range", {"key": "AA==", "range_end": "AA=="})  # all
        return None if answer is None else {base64.b64decode(one["key"]).decode(): base64.b64decode(one.get("value", ""))
                                            for one in answer.get("kvs", [])}


class Head:
    def __init__(self, test, listen):
        self.command = [test.dsgd, "head", "--listen", listen, "--num-workers", str(test.job.workers), "--set", "min_workers=1", "--set",
                        f"max_workers={test.job.all}", "--set", f"lease={test.job.lease}", "--set",
                        f"head_state=etcd://{test.etcd.address}/jobs"]
        self.token, self.log = test.token, os.path.join(test.folder, f"head{len(test.heads)}")
        self.start()
        self.command[3] = self.address

    def start(self):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(self.command, env=clean_environment(DSGD_TOKEN=self.token), stdout=subprocess.PIPE, stderr=log,
                                            text=True)
        line = self.process.stdout.readline()
        assert line, f"a head does not start: {open(self.log).read()}"
        self.address = line.split()[-1]

    def kill(self):
        assert self.process.poll() is None, f"the head at {self.address} had ended: {open(self.log).read()}"
        self.process.kill()
        self.close()

    def close(self):
        self.process.stdout.close()
        self.process.wait()


class Test(RunningJob):
    def __init__(self, dsgd, program, folder, kills):
        self.dsgd, self.program, self.folder, self.kills, self.token = dsgd, program, folder, kills, secrets.token_hex(8)
        self.job = types.SimpleNamespace(workers=4, all=6, steps=1_000_000, elements=60_000, pause=10_000, samples=0, strategy="allreduce",
                                         copies=1, bucket="4M", embedded=False, lease=f"{LEASE}s", head_timeout="60s")
        self.heads, self.workers, self.times = [], [], []
        self.etcd = Etcd(folder)

    def head_address(self):
        return ",".join(head.address for head in self.heads)

    def serving(self, other_than=None):
        """Waits until a head serves, and returns it."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            leader = (self.etcd.keys() or {}).get("jobs/default/leader")
            for head in self.heads:
                if leader and json.loads(leader)["head"] == head.address and head is not other_than:
                    return head
            time.sleep(0.05)
        raise AssertionError(f"no head serves within {LIMIT} s")

    def revive(self):
        """Starts heads again that could not renew their lease in time."""
        for head in self.heads:
            if head.process.poll() is not None:
                assert head.process.returncode == 1, f"the head at {head.address} ended with {head.process.returncode}"
                head.close()
                head.start()

    def replace(self, lose):
        """`lose` takes the head that serves out of service; returns that one once another has taken over."""
        self.revive()
        lost = self.serving()
        lose(lost)
        begin = time.monotonic()
        self.serving(lost)
        self.times.append(time.monotonic() - begin)
        return lost

    def run(self):
        for _ in range(HEADS):
            self.heads.append(Head(self, "127.0.0.1:0"))
        self.serving()
        for _ in range(self.job.workers):
            self.add_worker()
        self.wait("the first steps", lambda steps: len(steps) >= 20)

        self.replace(Head.kill).start()
        self.wait_for_steps("training goes on with another head", 50)
        self.workers[3].disturb(signal.SIGKILL)
        self.wait_for_members("a loss after a head was replaced", 0, 1, 2)

        lost = self.serving()
        lost.kill()
        self.workers[2].disturb(signal.SIGKILL)  # nothing can be decided, so the others wait for it
        self.workers[2].process.wait()
        self.serving(lost)
        lost.start()
        self.wait_for_members("a loss while no head served", 0, 1)
        self.add_worker()
        self.wait_for_members("a join with another head", 0, 1, 4)

        stopped = self.replace(lambda head: head.process.send_signal(signal.SIGSTOP))
        self.wait_for_steps("training goes on with a head that is stopped", 50)
        stopped.process.send_signal(signal.SIGCONT)
        assert ended(stopped.process, LIMIT) and stopped.process.returncode == 1, "a head that was replaced goes on"
        stopped.close()
        stopped.start()
        self.wait_for_steps("training goes on after a head was stopped", 50)

        self.etcd.kill()  # for less than a lease, on a machine that is not busy: then the head goes on
        self.etcd.start()
        self.workers[1].disturb(signal.SIGKILL)
        self.wait_for_members("a loss after the server was started again", 0, 4)

        serving = self.serving()
        self.etcd.kill()
        assert ended(serving.process, LIMIT) and serving.process.returncode == 1, "a head serves on after its lease"
        self.wait_for_steps("training goes on without etcd", 50)
        self.etcd.start()
        serving.close()
        self.serving(serving)
        serving.start()
        self.add_worker()
        self.wait_for_members("a join after the server was lost", 0, 4, 5)

        for _ in range(self.kills - 2):
            self.replace(Head.kill).start()
            self.wait_for_steps("training goes on after another kill", 20)

        self.workers[4].process.terminate()
        self.expect_one_model()
        for head in self.heads:
            assert ended(head.process, LIMIT), f"the head at {head.address} does not end with the job"
            assert head.process.returncode == 0, f"the head at {head.address} ended with {head.process.returncode}: {open(head.log).read()}"
        deadline = time.monotonic() + LIMIT
        while self.etcd.keys() != {}:
            assert time.monotonic() < deadline, f"etcd has keys after the job: {self.etcd.keys()}"
            time.sleep(0.1)

    def close(self):
        for process in [one.process for one in self.workers + self.heads]:
            process.kill()
            process.wait()
        self.etcd.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsgd", help="the dsgd program")
    parser.add_argument("worker", help="the process_loss_worker program")
    parser.add_argument("--kills", type=int, default=6 if os.environ.get("TEST_ALL_CASES") else 3,
                        help="how often the head that serves is killed")
    parser.add_argument("--report", help="a file to write the distribution of times to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        test = Test(options.dsgd, options.worker, folder, options.kills)
        try:
            test.run()
        except AssertionError as error:
            print(f"FAILED: {error}")
            return 1
        finally:
            test.close()
    times = sorted(test.times)
    lines = [f"{len(times)} times another head took over (lease {LEASE} s): fastest {times[0]:.2f} s, median "
             f"{times[len(times) // 2]:.2f} s, slowest {times[-1]:.2f} s"]
    print(*lines, sep="\n")
    if options.report:
        with open(options.report, "w") as file:
            print(*lines, sep="\n", file=file)
    if times[-1] > 2 * LEASE:
        print(f"FAILED: another head took over only after {times[-1]:.2f} s")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

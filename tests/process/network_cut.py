#!/usr/bin/env python3
"""Checks that a cut of the network between two workers does not end their job if it is shorter than the lease less a
heartbeat interval. Where workers listen on an address that others do not reach, the error must say what to set.

    network_cut.py PROCESS_WORKER

The workers run in network namespaces of their own, joined by a bridge in another one. The cut takes one worker's
link off the bridge: packets are lost, and neither worker is told. Ends with 77 (skipped) where namespaces cannot be made.
Each check has a job of two workers. All run at once, since they spend most of their time waiting.
"""
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time

from namespaces import Network

LEASE = 5.0  # TCP's back-off passes the end of the lease after such a cut: 1, 3, 7 s or 0.2, 0.6, ..., 3, 6.2 s
CUT = 0.65 * LEASE  # the lease less a heartbeat interval is 0.8 of it; the commands that cut and heal take time, too
RENEWAL = LEASE / 10  # the time between two, half a heartbeat interval
PAUSE = "5000"  # us, after each step


class Worker:
    def __init__(self, net, head, name, rank, program, work, **settings):
        environment = {
            "DSGD_HEAD": f"{net.address(head)}:7700", "DSGD_NUM_WORKERS": "2", "DSGD_RANK": str(rank), "DSGD_TOKEN": "secret",
            "DSGD_LEASE": f"{int(LEASE * 1000)}ms", "DSGD_STEP_TIMEOUT": "60s", "DSGD_INIT_TIMEOUT": "30s",
            **settings,
        }
        self.process = subprocess.Popen(net.command(name, program, *work),
                                        env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
        self.lines = []
        self.news = threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.news:
                self.lines.append(line)
                self.news.notify()

    def failed(self):
        return any(line.startswith("failed") for line in self.lines)

    # Waits until it has said the word.
    def expect(self, word):
        with self.news:
            said = self.news.wait_for(lambda: self.failed() or any(line.startswith(word) for line in self.lines), 60)
        assert said and not self.failed(), f"no {word!r}: {self.lines}"

    def healthy(self):
        return self.process.poll() is None and not self.failed()

    def end(self):
        self.process.kill()
        self.process.wait()


class Pair:
    """The two workers of job N. They run in the namespaces aN and bN."""

    def __init__(self, net, number, program):
        self.net, self.names, self.program, self.workers = net, [f"a{number}", f"b{number}"], program, []

    def start(self, *work, settings=({}, {})):
        for rank, (name, more) in enumerate(zip(self.names, settings)):
            self.workers.append(Worker(self.net, self.names[0], name, rank, self.program, work, **more))
        return self.workers

    def cut(self):
        self.net.cut(self.names[1])

    def heal(self):
        self.net.heal(self.names[1])

    def end(self):
        for worker in self.workers:
            worker.end()


# Both workers call dsgd_start in the cut, so each dials the other for the first time.
def check_start(pair):
    workers = pair.start("wait", "1000", PAUSE)
    for worker in workers:
        worker.expect("joined")
    pair.cut()
    for worker in workers:
        worker.process.send_signal(signal.SIGUSR1)
    time.sleep(CUT)
    pair.heal()
    for worker in workers:
        worker.expect("going")
    time.sleep(LEASE)
    for worker in workers:
        assert worker.healthy(), worker.lines


# The workers have one machine's identity, as containers have, but only their own loopback interface.
def check_loopback(pair, settings):
    workers = pair.start("steps", "1000", PAUSE, settings=settings)
    for worker in workers:
        worker.process.wait(60)
        worker.reader.join()
    told = [line for worker in workers for line in worker.lines]
    assert any("is cut off from rank" in line and "set `head`, `interface` or" in line for line in told), told


# The worker that is cut off closes its session in the cut. The other one trains on, alone.
def check_close(pair):
    stays, closes = pair.start("leave", "1", PAUSE)
    for worker in (stays, closes):
        worker.expect("going")
    pair.cut()
    time.sleep(RENEWAL)  # so that TCP sends the renewal again first, and the end of its connection with it
    closes.process.send_signal(signal.SIGUSR1)
    called = time.monotonic()
    time.sleep(CUT - RENEWAL)
    pair.heal()
    closes.expect("closed")
    assert time.monotonic() - called < LEASE, "the head has not answered the goodbye"
    stays.expect("alone")
    time.sleep(LEASE)
    assert stays.healthy(), stays.lines


# `after`: between two renewals.
def check_steps(pair, after):
    workers = pair.start("steps", "1000", PAUSE)
    for worker in workers:
        worker.expect("going")
    time.sleep(after)
    pair.cut()
    time.sleep(CUT)
    pair.heal()
    time.sleep(LEASE)  # by then a lease that was not renewed in time is over
    for worker in workers:
        assert worker.healthy(), worker.lines
    # For good: the test can tell.
    pair.cut()
    for worker in workers:
        worker.process.wait(60)
        worker.reader.join()
        assert not worker.healthy(), worker.lines
        assert any("DSGD_ERR_WORKER_LOST" in line for line in worker.lines), worker.lines


LOOPBACK = {"DSGD_INTERFACE": "lo"}
CHECKS = [(check_loopback, (LOOPBACK, LOOPBACK)), (check_loopback, (LOOPBACK, {})), (check_start,), (check_close,),
          (check_steps, 0.0), (check_steps, RENEWAL / 3), (check_steps, RENEWAL * 2 / 3)]


def run(pair, check, *arguments):
    try:
        check(pair, *arguments)
    finally:
        pair.end()


def main():
    with Network([f"{side}{number}" for number in range(len(CHECKS)) for side in "ab"]) as net, \
            concurrent.futures.ThreadPoolExecutor(len(CHECKS)) as pool:
        running = [pool.submit(run, Pair(net, number, sys.argv[1]), *check) for number, check in enumerate(CHECKS)]
        for one in running:
            one.result()


main()

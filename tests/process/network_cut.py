#!/usr/bin/env python3
"""Checks that a cut of the network between two workers does not end their job if it is shorter than the lease less a
heartbeat interval. Where workers listen on an address that others do not reach, the error must say what to set.

    network_cut.py PROCESS_WORKER

The workers run in network namespaces of their own, joined by a bridge in a third. The cut takes one worker's
link off the bridge: packets are lost, and neither worker is told. Ends with 77 (skipped) where namespaces cannot be made.
"""
import os
import signal
import subprocess
import sys
import threading
import time

from namespaces import Network

LEASE = 5.0  # TCP's back-off passes the end of the lease after such a cut: 1, 3, 7 s or 0.2, 0.6, ..., 3, 6.2 s
CUT = 0.75 * LEASE  # the lease less a heartbeat interval is 0.8 of it
RENEWAL = LEASE / 10  # the time between two, half a heartbeat interval


class Worker:
    def __init__(self, net, name, rank, program, work=("steps", "1000"), **settings):
        environment = {
            "DSGD_HEAD": "10.78.0.1:7700", "DSGD_NUM_WORKERS": "2", "DSGD_RANK": str(rank), "DSGD_TOKEN": "secret",
            "DSGD_LEASE": f"{int(LEASE * 1000)}ms", "DSGD_STEP_TIMEOUT": "60s", "DSGD_INIT_TIMEOUT": "30s",
            **settings,
        }
        self.process = subprocess.Popen(net.command(name, program, *work),
                                        env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
        self.lines = []
        self.news = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

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


# Both workers call dsgd_start in the cut, so each dials the other for the first time.
def check_start(net, program):
    workers = [Worker(net, name, rank, program, ("wait", "1000")) for rank, name in enumerate("ab")]
    try:
        for worker in workers:
            worker.expect("joined")
        net.cut("b")
        for worker in workers:
            worker.process.send_signal(signal.SIGUSR1)
        time.sleep(CUT)
        net.heal("b")
        for worker in workers:
            worker.expect("going")
        time.sleep(LEASE)
        for worker in workers:
            assert worker.healthy(), worker.lines
    finally:
        for worker in workers:
            worker.end()


# The workers have one machine's identity, as containers have, but only their own loopback interface.
def check_loopback(net, program):
    for on_loopback in "ab", "a":
        workers = [Worker(net, name, rank, program, **({"DSGD_INTERFACE": "lo"} if name in on_loopback else {}))
                   for rank, name in enumerate("ab")]
        for worker in workers:
            worker.process.wait(60)
        told = [line for worker in workers for line in worker.lines]
        assert any("is cut off from rank" in line and "set `head`, `interface` or" in line for line in told), told


# The worker that is cut off closes its session in the cut. The other one trains on, alone.
def check_close(net, program):
    stays, closes = [Worker(net, name, rank, program, ("leave", "1")) for rank, name in enumerate("ab")]
    try:
        for worker in (stays, closes):
            worker.expect("going")
        net.cut("b")
        time.sleep(RENEWAL)  # so that TCP sends the renewal again first, and the end of its connection with it
        closes.process.send_signal(signal.SIGUSR1)
        called = time.monotonic()
        time.sleep(CUT - RENEWAL)
        net.heal("b")
        closes.expect("closed")
        assert time.monotonic() - called < LEASE, "the head has not answered the goodbye"
        stays.expect("alone")
        time.sleep(2 * LEASE)
        assert stays.healthy(), stays.lines
    finally:
        for worker in (stays, closes):
            worker.end()


def main():
    program = sys.argv[1]
    with Network("ab") as net:
        check_loopback(net, program)
        check_start(net, program)
        check_close(net, program)
        workers = [Worker(net, name, rank, program) for rank, name in enumerate("ab")]
        try:
            for worker in workers:
                worker.expect("going")
            for after in (0.0, RENEWAL / 3, RENEWAL * 2 / 3):
                time.sleep(after)
                net.cut("b")
                time.sleep(CUT)
                net.heal("b")
                time.sleep(2 * LEASE)  # by then a lease that was not renewed in time is over
                for worker in workers:
                    assert worker.healthy(), worker.lines
            # For good: the test can tell.
            net.cut("b")
            for worker in workers:
                worker.process.wait(60)
                assert not worker.healthy(), worker.lines
                assert any("DSGD_ERR_WORKER_LOST" in line for line in worker.lines), worker.lines
        finally:
            for worker in workers:
                worker.end()


main()

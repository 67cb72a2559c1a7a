#!/usr/bin/env python3
"""The head of a real job gets SIGKILL again and again, and is started again with the same head_state.

head_restart.py DSGD WORKER

Workers (loss_worker.c) must train on while there is no head; a worker that is lost or joins after a restart, or while there is no
head, must be handled by the next one. Each event follows from the steps that worker 0 has written. At the end all workers that
are left hold the same bytes, and the file of the head is gone.
"""
import os
import secrets
import signal
import sys
import tempfile
import types

from loss import Head, ended
from running_job import LIMIT, RunningJob


class Test(RunningJob):
    def __init__(self, dsgd, program, folder):
        self.program, self.folder, self.token = program, folder, secrets.token_hex(8)
        self.job = types.SimpleNamespace(workers=4, all=6, steps=60_000, elements=60_000, pause=5000, samples=0,
                                         strategy="allreduce", copies=1, bucket="4M", head_losses=True, embedded=False)
        self.head = Head(dsgd, self.job, self.token, folder)
        self.workers = []

    def head_address(self):
        return self.head.address

    def kill_head(self):
        assert self.head.stop() == -signal.SIGKILL, "the head had ended"

    def run(self):
        for _ in range(self.job.workers):
            self.add_worker()
        self.wait("the first steps", lambda steps: len(steps) >= 20)

        self.kill_head()
        self.wait_for_steps("training goes on without a head", 50)
        self.head.start()
        self.workers[3].disturb(signal.SIGKILL)
        self.wait_for_members("a loss after a restart", 0, 1, 2)
        self.add_worker()
        self.wait_for_members("a join after a restart", 0, 1, 2, 4)

        self.kill_head()
        self.workers[2].disturb(signal.SIGKILL)  # nothing can be decided, so the others wait for it
        self.workers[2].process.wait()
        self.head.start()
        self.wait_for_members("a loss while there was no head", 0, 1, 4)

        self.kill_head()
        self.add_worker()
        self.wait_for_steps("training goes on without a head while another worker wants to join", 50)
        self.head.start()
        self.wait_for_members("a join while there was no head", 0, 1, 4, 5)

        for _ in range(5):  # perhaps before the workers have come back
            self.kill_head()
            self.head.start()
        self.wait_for_steps("training goes on after several kills", 50)
        self.workers[4].disturb(signal.SIGKILL)
        self.wait_for_members("a loss after several kills", 0, 1, 5)

        self.workers[1].process.terminate()
        self.expect_one_model()
        assert ended(self.head.process, LIMIT) and self.head.process.returncode == 0, "the head does not end with the job"
        assert not os.path.exists(os.path.join(self.folder, "head")), "the head's file is left after the job"

    def close(self):
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()
        self.head.stop()


def main():
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        test = Test(*sys.argv[1:], folder)
        try:
            test.run()
        except AssertionError as error:
            print(f"FAILED: {error}")
            return 1
        finally:
            test.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A job of the tests that run loss_worker.c and wait for what its worker 0 has written."""
import time

from loss import Worker, ended

LIMIT = 60  # s, of each wait


class RunningJob:
    """A test gives it `program`, `job`, `token`, `folder` and head_address()."""

    POLL = 0.01  # s, between two looks at what worker 0 has written

    def add_worker(self):
        self.workers.append(Worker(self.program, len(self.workers), self.job, self.head_address(), self.token, self.folder))
        return self.workers[-1]

    def steps(self):
        self.workers[0].read()
        return self.workers[0].steps

    def wait(self, what, holds):
        deadline = time.monotonic() + LIMIT
        while not holds(self.steps()):
            if self.workers[0].process.poll() is not None:
                raise AssertionError(f"worker 0 has ended before {what}: {self.workers[0].failure}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {LIMIT} s; the last step is {self.steps()[-1:]}")
            time.sleep(self.POLL)

    def wait_for_steps(self, what, more):
        begin = len(self.steps())
        self.wait(what, lambda steps: len(steps) >= begin + more)

    def wait_for_members(self, what, *numbers):
        used = sum(1 << number for number in numbers)
        self.wait(what, lambda steps: steps and steps[-1][1] == used)

    def expect_one_model(self):
        """Waits for the workers that are left, and compares what they hold."""
        left = [worker for worker in self.workers if worker.disturbed is None]
        for worker in left:
            assert ended(worker.process, LIMIT), f"worker {worker.number} hangs"
            worker.read()
            assert worker.values is not None, f"worker {worker.number}: {worker.failure}"
            assert worker.values == left[0].values, f"worker {worker.number} has other values than worker 0"

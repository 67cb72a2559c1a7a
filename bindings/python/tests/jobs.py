"""Runs a job of several worker processes for a test. Processes are used again for the next job: starting an interpreter
with NumPy takes longer than most jobs."""

import atexit
import multiprocessing
import traceback

import dsgd

_SPAWN = multiprocessing.get_context("spawn")  # a fork of a process with threads is a test of its own
_idle = []


def _serve(pipe):
    while (task := pipe.recv()) is not None:
        function, options, arguments = task
        try:
            with dsgd.init(**options) as session:
                result = function(session, *arguments)
            answer = (result, None)
        except BaseException as error:
            answer = (None, (error if isinstance(error, dsgd.Error) else None, traceback.format_exc()))
        pipe.send(answer)


class _Process:
    def __init__(self):
        self.pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def kill(self):
        self.process.kill()
        self.process.join()
        self.pipe.close()


@atexit.register
def _end():
    for process in _idle:
        process.kill()


class WorkerFailed(AssertionError):
    """A worker raised; `error` is its dsgd.Error, if it was one."""

    def __init__(self, rank, error, text):
        super().__init__(f"rank {rank}: {text}")
        self.error = error


class Job:
    """Workers that run `function(session, *arguments)`, each in a process of its own. `each` gives options by rank."""

    def __init__(self, function, workers=2, arguments=(), each=None, **options):
        self.head = dsgd.Head(head="127.0.0.1:0", num_workers=workers, **options)
        self.workers = [_idle.pop() if _idle else _Process() for _ in range(workers)]
        self.busy = set(range(workers))
        for rank, worker in enumerate(self.workers):
            mine = {"head": self.head.address, "num_workers": workers, "rank": rank, "embed_head": "never", **options}
            mine.update((each or {}).get(rank, {}))
            worker.pipe.send((function, mine, arguments))

    def result(self, rank, timeout=60):
        """What the function returned at `rank`; raises WorkerFailed."""
        worker = self.workers[rank]
        if not worker.pipe.poll(timeout):
            raise AssertionError(f"rank {rank} said nothing for {timeout} s")
        try:
            result, failure = worker.pipe.recv()
        except (EOFError, ConnectionError):
            worker.process.join(timeout)
            raise AssertionError(f"rank {rank} died with {worker.process.exitcode}") from None
        self.busy.discard(rank)
        if failure is not None:
            raise WorkerFailed(rank, *failure)
        return result

    def failure(self, rank, timeout=60):
        """The dsgd.Error that rank raised."""
        try:
            result = self.result(rank, timeout)
        except WorkerFailed as failed:
            assert failed.error is not None, str(failed)
            return failed.error
        raise AssertionError(f"rank {rank} returned {result!r}; an error was expected")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for rank, worker in enumerate(self.workers):
            if rank in self.busy:
                worker.kill()
            else:
                _idle.append(worker)
        self.head.close()


def run(function, workers=2, arguments=(), each=None, **options):
    """The results of all workers, by rank."""
    with Job(function, workers, arguments, each, **options) as job:
        return [job.result(rank) for rank in range(workers)]

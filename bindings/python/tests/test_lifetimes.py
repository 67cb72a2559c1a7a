"""What is dropped, closed, forked or interrupted at the wrong moment."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref

import numpy
import pytest

import dsgd
import jobs
from dsgd import _handle, _logs


class Array(numpy.ndarray):
    """With weak references, and nothing else."""


def array(count, kind="f4"):
    return numpy.ones(count, kind).view(Array)


def eventually(condition):
    """Waits for another thread."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_closed_session_says_so():
    session = dsgd.init()
    parameter = session.add_parameter("w", 3)
    replica = session.add_replica()
    shard = session.shard(10)
    session.close()
    session.close()
    assert session.closed and "CLOSED" in repr(session)
    calls = [
        lambda: session.rank,
        lambda: session.view,
        lambda: session.add_parameter("v", 3),
        lambda: session.add_replica(),
        lambda: replica.alloc(parameter),
        lambda: replica.bind(parameter, array(3), array(3)),
        lambda: replica.gradient_ready(parameter),
        lambda: session.set_optimizer("sgd"),
        lambda: session.set_strategy("ps"),
        lambda: session.set_learning_rate(1),
        lambda: session.start(),
        lambda: session.step(),
        lambda: session.allreduce(array(3)),
        lambda: session.allgather(array(3)),
        lambda: session.barrier(),
        lambda: session.put("a", b""),
        lambda: session.get("a", timeout=0),
        lambda: session.digest(),
        lambda: session.request_stop(),
        lambda: session.shard(3),
    ]
    for call in calls:
        with pytest.raises(dsgd.ClosedError):
            call()
    assert len(shard) == 10 and parameter.name == "w"


def test_a_dropped_session_is_freed_and_warned_about():
    session = dsgd.init(forward_logs=False)
    parameter = session.add_parameter("w", 3)
    handle = weakref.ref(session._handle)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del session
        gc.collect()
    assert handle() is not None  # the parameter still refers to it
    del parameter
    assert handle() is None


def test_a_dropped_session_is_freed_though_its_logs_are_forwarded():
    session = dsgd.init()
    finished = weakref.finalize(session._handle, lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del session
    _logs.join()
    assert not finished.alive


def test_buffers_of_a_dropped_session_are_released_after_it():
    session = dsgd.init(forward_logs=False)
    value = array(3)
    gone = weakref.ref(value)
    session.add_replica().bind(session.add_parameter("w", 3), value, array(3))
    del value
    gc.collect()
    assert gone() is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del session
    gc.collect()
    eventually(lambda: gone() is None)


def test_the_collector_does_not_wait_until_an_open_session_has_left(monkeypatch):
    session = dsgd.init(forward_logs=False)
    value = array(3)
    gone = weakref.ref(value)
    session.add_replica().bind(session.add_parameter("w", 3), value, array(3))
    del value
    close, may_leave = _handle._raw.dsgd_close, threading.Event()

    def slow_close(pointer, timeout_ms):
        may_leave.wait()
        close(pointer, timeout_ms)

    monkeypatch.setattr(_handle._raw, "dsgd_close", slow_close)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del session
    gc.collect()
    assert gone() is not None  # dsgd may still use the buffers
    may_leave.set()
    eventually(lambda: gone() is None)


def test_objects_and_shards_outlive_what_they_came_from():
    session = dsgd.init(forward_logs=False)
    session.put("name", b"bytes")
    found, shard = session.get("name"), session.shard(3)
    session.close()
    del session
    gc.collect()
    assert bytes(found) == b"bytes" and len(shard) == 3


def test_many_sessions_one_after_another_and_at_once():
    for _ in range(20):
        with dsgd.init() as session:
            assert session.allreduce(array(10)).sum() == 10
    sessions = [dsgd.init() for _ in range(8)]
    for session in sessions:
        session.barrier()
    for session in sessions:
        session.close()


def test_finished_operations_release_their_buffers_at_once(session):
    data = array(3)
    gone = weakref.ref(data)
    operation = session.allreduce_async(data)
    operation.wait()
    assert not session._handle.pending
    del operation, data
    assert gone() is None
    session.barrier_async()
    session.barrier()
    session.barrier()
    assert not session._handle.pending and not session._handle.orphans


def drop_in_flight(session):
    if session.rank == 1:
        session.get("go")
        session.allreduce(numpy.ones(1000, "f4"))
        session.barrier()
        session.barrier()
        return None
    data = array(1000)
    gone = weakref.ref(data)
    session.allreduce_async(data)  # dropped
    address = data.ctypes.data
    del data
    gc.collect()
    held = gone() is not None and gone().ctypes.data == address and len(session._handle.orphans) == 1
    session.put("go", b"")
    session.barrier()  # comes after the all-reduce on both workers
    session.barrier()  # sweeps what has ended
    gc.collect()
    return held, gone() is None and not session._handle.orphans


def test_an_operation_dropped_in_flight_keeps_its_buffer_until_it_ends():
    assert jobs.run(drop_in_flight)[0] == (True, True)


def close_in_flight(session):
    if session.rank == 1:
        session.get("never")  # until the test ends this process
    data = array(10)
    gone = weakref.ref(data)
    operation = session.allreduce_async(data)
    del data
    with pytest.raises(dsgd.WaitTimeoutError, match=r"after 250 ms: rank 1 .* has not made this call; it goes on"):  # more than one slice
        operation.wait(0.25)
    assert not operation.done and gone() is not None
    session.close(0)
    assert not session._handle.pending
    with pytest.raises(dsgd.ClosedError):
        operation.wait()
    ended = operation.done
    del operation  # it has its array as the result
    gc.collect()
    return ended and gone() is None


def test_close_ends_operations_and_gives_the_buffers_back():
    with jobs.Job(close_in_flight) as job:
        assert job.result(0) is True


def test_calls_from_many_threads(session):
    errors = []

    def work():
        try:
            for _ in range(20):
                assert session.shard(10).next(3).size == 3
                assert session.rank == 0
                session.allreduce(array(10))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_blocking_calls_let_other_threads_run():
    """Two workers of one process meet only if the GIL is given up in init, start, step and close."""
    results = []
    with dsgd.Head(head="127.0.0.1:0", num_workers=2) as head:

        def worker(rank):
            options = dict(head=head.address, num_workers=2, rank=rank, embed_head="never")
            with dsgd.init(**options) as session:
                value, gradient = session.add_replica().alloc(session.add_parameter("w", 4))
                session.set_optimizer("sgd", lr=1)
                session.start()
                gradient[:] = rank * 2
                session.step()
                results.append(value.tolist())

        threads = [threading.Thread(target=worker, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert results == [[-1.0] * 4] * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of os.fork in a process with threads
def test_a_forked_child_is_told_and_harms_nothing(session):
    parameter = session.add_parameter("w", 3)
    value, _ = session.add_replica().alloc(parameter)
    session.start()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = []
        for call in (lambda: session.rank, session.step, session.barrier, session.close):
            try:
                call()
                said.append("nothing")
            except dsgd.Error as error:
                said.append(error.status.name)
            except BaseException as error:
                said.append(repr(error))
        os.write(write, ",".join(said).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "FORKED,FORKED,FORKED,FORKED"
    assert os.waitpid(pid, 0)[1] == 0
    assert session.step().applied


def python(text, **options):
    """Another interpreter, with the checks on that would show a fault at its exit; SWIG's types make Python 3.12 warn."""
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(text)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, **options,
    )


def test_an_interpreter_that_forgets_to_close_ends_cleanly():
    done = python(
        """
        import dsgd, numpy, threading
        session = dsgd.init(log_level="debug")
        value, gradient = session.add_replica().alloc(session.add_parameter("w", 10))
        session.start()
        session.step_begin()
        lonely = dsgd.Head(head="127.0.0.1:0", num_workers=2)
        def wait():
            try:
                lonely.wait()
            except dsgd.ClosedError:
                pass
        threading.Thread(target=wait, daemon=True).start()
        print("end")
        """
    )
    assert done.returncode == 0 and done.stdout == "end\n", done.stdout


def test_ctrl_c_is_heard_while_waiting():
    done = python(
        """
        import _thread, dsgd, os, signal, threading
        with dsgd.Head(head="127.0.0.1:0", num_workers=2) as head:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                head.wait()
            except KeyboardInterrupt:
                print("heard")
        """
    )
    assert done.returncode == 0 and done.stdout == "heard\n", done.stdout


def test_leaving_the_block_with_an_exception_keeps_the_exception():
    with pytest.raises(ZeroDivisionError):
        with dsgd.init() as session:
            1 / 0
    assert session.closed
    with pytest.raises(SystemExit):
        with dsgd.init() as session:
            sys.exit(0)
    assert session.closed

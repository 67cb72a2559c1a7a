"""Ctrl-C ends every wait, at once, and is not hidden by another error. The other worker of each job stays away, and all
time limits are longer than the tests."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import textwrap

import dsgd
import pytest

SETUP = """
import dsgd, numpy, sys
address = sys.argv[1]
options = dict(head=address, num_workers=2, init_timeout="10m", step_timeout="10m", embed_head="never", log_to="stderr", log_level="info")
"""
WITH_SESSION = """
with dsgd.init(forward_logs=False, **options) as session:
    value, gradient = session.add_replica().alloc(session.add_parameter("w", 4))
    print("ready", flush=True)
    {call}
"""
STARTED = """
with dsgd.init(forward_logs=False, **options) as session:
    value, gradient = session.add_replica().alloc(session.add_parameter("w", 4))
    session.start()
    print("ready", flush=True)
    {call}
"""
JOINING = """
print("ready", flush=True)
dsgd.init(**options)
"""


def program(text, address, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SETUP + text), address],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )


def interrupt(process):
    """Sends SIGINT once the process says that it is about to wait."""
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert process.returncode == -signal.SIGINT, "Python ends by the signal when nobody has caught KeyboardInterrupt"


@pytest.fixture
def head():
    with dsgd.Head(head="127.0.0.1:0", num_workers=2) as head:
        yield head


def test_while_joining(head):
    interrupt(program(JOINING, head.address))


def test_while_joining_is_told_to_the_other_worker_and_the_head(head):
    process = program(JOINING, head.address)
    assert process.stdout.readline() == "ready\n"
    for line in process.stderr:  # the log says when the head has taken the worker in
        if "1 of 2 workers have joined" in line:
            break
    process.send_signal(signal.SIGINT)
    with pytest.raises(dsgd.Error) as told:
        head.wait(60)
    assert told.value.status == dsgd.Status.ABORTED
    assert "KeyboardInterrupt while joining" in str(told.value)
    _, errors = process.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors


CALLS = {
    "start": (WITH_SESSION, "session.start()"),
    "get": (WITH_SESSION, "session.get('never')"),
    "get with a limit": (WITH_SESSION, "session.get('never', timeout=600)"),
    "log": (WITH_SESSION, "[session.poll_log(600) for _ in range(1000)]"),
    "barrier": (WITH_SESSION, "session.barrier()"),
    "allreduce": (WITH_SESSION, "session.allreduce(numpy.ones(4))"),
    "broadcast": (WITH_SESSION, "session.broadcast(numpy.ones(4), root=1 - session.rank)"),
    "a channel": (WITH_SESSION, "session.channel(1).barrier()"),
    "an operation": (WITH_SESSION, "session.barrier_async().wait()"),
    "step": (STARTED, "session.step()"),
    "set_strategy": (STARTED, "session.set_strategy('ps')"),
    "close": (WITH_SESSION, "waiting = session.barrier_async(); session.close()"),
    "the end of a with": (WITH_SESSION, "waiting = session.barrier_async()"),
    "the end of an async with": (
        """
import asyncio
async def main():
    async with await dsgd.init_async(forward_logs=False, **options) as session:
        waiting = session.barrier_async()
        print("ready", flush=True)
asyncio.run(main())
""",
        "",
    ),
}


def stay_away(address, text):
    """The session of the other worker, which makes no call that the worker under test waits for."""
    session = dsgd.init(head=address, num_workers=2, step_timeout="10m", embed_head="never", forward_logs=False)
    try:
        session.add_replica().alloc(session.add_parameter("w", 4))
        if text == STARTED:
            session.start()
    except dsgd.Error as error:  # the worker under test may have been interrupted already
        assert error.status is dsgd.Status.ABORTED
    return session


@pytest.mark.parametrize("call", CALLS)
def test_in_a_call(head, call):
    text, line = CALLS[call]
    with concurrent.futures.ThreadPoolExecutor() as pool:  # this process: another interpreter takes half a second to start
        other = pool.submit(stay_away, head.address, text)
        process = program(text.format(call=line), head.address)
        try:
            interrupt(process)
        finally:
            process.kill()  # if it has not ended
            other.result().close(0)


# A head that no worker comes to.
HEAD = """
with dsgd.Head(head="127.0.0.1:0", num_workers=2, init_timeout="10m") as head:
    print("ready", flush=True)
    head.wait({timeout})
"""


@pytest.mark.parametrize("timeout", ["", "600"])
def test_while_a_head_waits(timeout):
    interrupt(program(HEAD.format(timeout=timeout), ""))


# A call of C that hangs and that no signal ends, as one that waits for a GPU or resolves a host name.
HUNG = """
import ctypes, os
from dsgd import _raw
libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(lock)
# Not print(): the thread could be inside sys.stdout when the interpreter ends.
_raw.{function} = lambda *_: os.write(1, b"ready\\n") and libc.pthread_mutex_lock(lock)
{call}
"""
WITH_REPLICA = """with dsgd.init(forward_logs=False) as session:
    replica, parameter = session.add_replica(), session.add_parameter("w", 4)
    replica.device = "cuda:0"
    """


@pytest.mark.parametrize(
    "function, call",
    [
        ("dsgd_head_start", "dsgd.Head(head='127.0.0.1:0')"),
        ("dsgd_digest", WITH_REPLICA + "session.digest()"),
        ("dsgd_alloc", WITH_REPLICA + "replica.alloc(parameter)"),
    ],
)
def test_in_a_call_that_hangs(function, call):
    interrupt(program(HUNG.format(function=function, call=call), ""))


# The system may deliver a signal to any thread. Here it is the one that makes the call, once the main thread waits for it.
SIGNAL_IN_THE_CALL = """
import signal, threading, time
from dsgd import _raw

def head_start(config):
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(600)

_raw.dsgd_head_start = head_start
dsgd.Head(head="127.0.0.1:0")
"""


def test_by_a_signal_to_another_thread():
    process = program(SIGNAL_IN_THE_CALL, "")
    _, errors = process.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors


WHILE_BEGINNING = """
import os, signal

def threads():
    return len(os.listdir("/proc/self/task"))

signal.signal(signal.SIGALRM, signal.default_int_handler)
# Python drops what is raised in the callback of a weak reference, such as importlib's. The interrupt then comes again.
sys.unraisablehook = lambda _: signal.setitimer(signal.ITIMER_REAL, 0.001)
options.update(head="127.0.0.1:1", log_to="none")  # no head listens there: joining goes on until it is interrupted
before = threads()
for microseconds in range(10, 3000, {interval}):
    try:
        signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
        dsgd.init(forward_logs=False, **options)
    except KeyboardInterrupt:
        pass
print(threads() - before)
"""


INTERVAL = 20 if os.environ.get("TEST_ALL_CASES") else 60  # us, between two moments of the interrupt


def test_while_joining_begins_leaves_no_session():
    process = program(WHILE_BEGINNING.format(interval=INTERVAL), "")
    output, errors = process.communicate(timeout=100)
    assert output == "0\n", errors

"""The C session behind a Session, and what it may still touch.

Buffers that dsgd reads or writes are held here until their operation has ended, others are bound, or the session is
closed; dropping an Operation or a Session in mid-flight therefore never frees memory under dsgd. Every Python object of
a session refers to its Handle, never the Handle to them, so that plain reference counting frees a dropped session.
"""

from __future__ import annotations

import _thread
import concurrent.futures
import numbers
import threading
import weakref
from itertools import starmap
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from . import _raw
from ._errors import Error, InvalidArgumentError, WaitTimeoutError

# Waits in C are made in slices, between which Python handles signals: Ctrl-C is heard within one.
_SLICE_MS = 50

_LIVE: "weakref.WeakSet[Handle]" = weakref.WeakSet()


def call_into(results: List[Any], function: Callable[..., Any], *args: Any) -> None:
    """`results.append(function(*args))` for a function in C.

    Python runs no signal handler between the two: a KeyboardInterrupt, which can come after any bytecode, does not lose the
    result.
    """
    results.extend(starmap(function, (args,)))


class Pending:
    """A C operation and the buffers that are dsgd's until it has ended."""

    __slots__ = ("begun", "buffers")

    def __init__(self, buffers: Tuple[Any, ...]) -> None:
        self.begun: List[Any] = []  # the C operation, once there is one
        self.buffers = buffers

    @property
    def pointer(self) -> Any:
        return self.begun[0]

    def ended(self) -> bool:
        try:
            return not self.begun or bool(_raw.dsgd_op_test(self.pointer))
        except Exception:  # it has ended with this error, or the interpreter is going
            return True

    def free(self) -> None:
        if self.begun:
            _raw.dsgd_op_free(self.pointer)


class Handle:
    """Owns the C session. Freed, without waiting, when nothing refers to it any more."""

    def __init__(self) -> None:
        self.pointer: Any = None
        self.lock = threading.Lock()
        self.pending: Set[Pending] = set()
        self.orphans: Set[Pending] = set()  # those whose Operation is gone; freed here once they have ended
        self.bound: Dict[Any, List[Any]] = {}  # [value, gradient] or [value], by replica and parameter
        self.on_close: List[Callable[[], None]] = []
        self._opened: List[Any] = []
        self._left: List[bool] = []  # not empty: closed
        held = (self._opened, self.pending, self.orphans, self.bound)
        finalizer = weakref.finalize(self, _free, self._left, *held)
        # At exit another thread may be within a call: sessions are closed then, by close_all, but not freed.
        finalizer.atexit = False

    @property
    def closed(self) -> bool:
        return bool(self._left)

    def open(self, config: Any) -> Any:
        """Begins to join a job. Returns the C operation."""
        try:
            call_into(self._opened, _raw.dsgd_init_begin, config, None)
        finally:
            if self._opened:
                self.pointer = self._opened[0][0]
                _LIVE.add(self)
        return self._opened[0][1]

    def begin(self, pending: Pending, function: Callable[..., Any], *args: Any) -> None:
        """Begins the operation that `function(session, *args)` returns."""
        with self.lock:
            self.pending.add(pending)
            self._sweep()
        _raw.dsgd_py_tensors_release()
        call_into(pending.begun, function, self.pointer, *args)

    def done(self, pending: Pending) -> None:
        """The operation has ended: its buffers are the host's again."""
        with self.lock:
            self.pending.discard(pending)
            pending.buffers = ()

    def dropped(self, pending: Pending) -> None:
        """The host has let go of the operation. Called from __del__, which may interrupt a thread that holds self.lock. So it
        takes no lock, and relies on set operations being atomic."""
        if pending.ended():
            self.pending.discard(pending)
            pending.free()
        else:
            self.orphans.add(pending)

    def _sweep(self) -> None:
        for pending in list(self.orphans):
            if pending.ended():
                self.pending.discard(pending)
                self.orphans.discard(pending)
                pending.free()

    def close(self, timeout_ms: int) -> None:
        try:
            self._leave(timeout_ms)
        finally:
            self._left.append(True)
            with self.lock:
                self._sweep()
                for pending in list(self.pending):
                    pending.buffers = ()
                self.pending.clear()
                _let_go(self.bound)
            for function in self.on_close:
                function()

    def _leave(self, timeout_ms: int) -> None:
        if timeout_ms == 0:
            return _raw.dsgd_close(self.pointer, 0)
        try:
            interruptible(lambda: _raw.dsgd_close(self.pointer, timeout_ms))
        except Error:
            raise
        except BaseException:
            _raw.dsgd_close(self.pointer, 0)  # ends the wait of the other thread's call, too
            raise


def interruptible(function: Callable[[], Any], abandoned: Callable[[Any], None] = lambda _: None) -> Any:
    """`function()`, which blocks in C, so that Ctrl-C can interrupt the wait. Python handles signals in the main thread, between
    calls into C, so there a helper thread makes the call. An interrupted call goes on, and `abandoned` gets its result.

    The main thread waits in slices: a signal that comes just before a wait, or to another thread, does not end the wait.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    future: "concurrent.futures.Future[Any]" = concurrent.futures.Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as failure:
            future.set_exception(failure)

    try:
        threading.Thread(target=call, name="dsgd-call", daemon=True).start()
    except RuntimeError:  # no more threads, or the interpreter is ending
        return function()
    try:
        while not future.done():
            concurrent.futures.wait((future,), _SLICE_MS / 1000)
        return future.result()
    except BaseException:
        future.add_done_callback(lambda ended: None if ended.exception() else abandoned(ended.result()))
        raise


def _free(left: List[bool], opened: List[Any], *others: Any) -> None:
    """Frees what a Handle held. The collector may call this within any other code.

    An open session first leaves its job, which may take some time, so a thread does that. It is not a threading.Thread,
    whose start takes locks that the interrupted code may hold.
    """
    if opened and not left:
        try:
            _thread.start_new_thread(_leave_and_free, (opened, *others))
            return
        except RuntimeError:  # no more threads, or the interpreter is ending
            pass
    _leave_and_free(opened, *others)


def _leave_and_free(
    opened: List[Any], pending: Set[Pending], orphans: Set[Pending], bound: Dict[Any, List[Any]]
) -> None:
    for pointer, _ in opened:
        try:
            _raw.dsgd_close(pointer, 0)  # ends all use of the buffers; other threads of Python may run meanwhile
        except Error:
            pass  # a forked child
        _raw.dsgd_session_free(pointer)
    for orphan in orphans:
        orphan.free()
    orphans.clear()
    pending.clear()
    _let_go(bound)


def _let_go(bound: Dict[Any, List[Any]]) -> None:
    for held in bound.values():
        held.clear()  # dsgd refers to it until the session is freed
    bound.clear()
    _raw.dsgd_py_tensors_release()


def close_all() -> None:
    """At exit: threads of dsgd's must not outlive the interpreter, and the peers should learn that this worker left."""
    for handle in list(_LIVE):
        if not handle.closed:
            try:
                handle.close(0)
            except Error:
                pass  # a forked child, or closed meanwhile


def milliseconds(timeout: Optional[float]) -> int:
    """From seconds; None is -1, dsgd's "as long as the operation's own deadline"."""
    if timeout is None:
        return -1
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real) or not timeout >= 0:
        raise InvalidArgumentError(f"timeout is {timeout!r}; give a number of seconds (0 or more), or None for no limit")
    return int(-(-min(timeout * 1000, 2**31 - 1) // 1))


def wait_in_slices(
    call: Callable[[int], Any], timeout: Optional[float], message: Optional[Callable[[], str]] = None
) -> Any:
    """`call(timeout_ms)` until it no longer raises WaitTimeoutError or `timeout` seconds have passed.

    Raises WaitTimeoutError with the message of the last slice, in which the slice's time is replaced by the whole timeout; or with
    `message()` if given.
    """
    left = whole = milliseconds(timeout)
    while True:
        part = _SLICE_MS if left < 0 else min(left, _SLICE_MS)
        try:
            return call(part)
        except WaitTimeoutError as error:
            if left >= 0:
                left -= part
                if left <= 0:
                    raise WaitTimeoutError(
                        message() if message else str(error).replace(f" {part} ms", f" {whole} ms", 1),
                        rank=error.rank,
                        host=error.host,
                        operation=error.operation,
                        parameter=error.parameter,
                    ) from None

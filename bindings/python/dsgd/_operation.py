"""Work in progress: waited for by threads, or awaited through the session's file descriptor."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Callable, Dict, Generator, Generic, Optional, Set, Tuple, TypeVar

from . import _raw
from ._errors import Error, WaitTimeoutError
from ._handle import Handle, Pending, wait_in_slices
from ._types import StepResult

T = TypeVar("T")


class Operation(Generic[T]):
    """Work in progress. Its buffers are dsgd's until it has ended, also when this object is dropped."""

    def __init__(
        self, handle: Handle, buffers: Tuple[Any, ...], result: Callable[[Any], T], function: Callable[..., Any], *args: Any
    ) -> None:
        """Begins the C operation that `function(session, *args)` returns; `result` makes the result from it."""
        self._handle = handle
        self._result = result
        self._pending: Optional[Pending] = Pending(buffers)
        handle.begin(self._pending, function, *args)

    @property
    def id(self) -> int:
        """Unique in the session."""
        return int(_raw.dsgd_op_id(self._op.pointer))

    @property
    def _op(self) -> Pending:
        assert self._pending is not None
        return self._pending

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not. Never blocks."""
        ended = self._op.ended()
        if ended:
            self._handle.done(self._op)
        return ended

    def wait(self, timeout: Optional[float] = None) -> T:
        """Waits for the end and returns the result, or raises how it failed.

        timeout: seconds; when they run out WaitTimeoutError is raised and the operation goes on. None: until it ends;
        its own deadline bounds that.
        """
        return self._wait(timeout)

    def _wait(self, timeout: Optional[float], message: Optional[Callable[[], str]] = None) -> T:
        op = self._op
        try:
            wait_in_slices(lambda ms: _raw.dsgd_op_wait(op.pointer, ms), timeout, message)
        except WaitTimeoutError:
            raise
        except Error:
            if op.ended():
                self._handle.done(op)
            raise
        self._handle.done(op)
        return self._result(op.pointer)

    async def _awaited(self) -> T:
        if not self.done:
            await _queue_of(self._handle).ended(self._op)
        return self.wait(0)

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    def __del__(self) -> None:
        pending = getattr(self, "_pending", None)
        if pending is not None:
            self._pending = None
            self._handle.dropped(pending)

    def __repr__(self) -> str:
        return f"<dsgd.{type(self).__name__} {self.id} {'done' if self.done else 'running'}>"


class StepOperation(Operation[StepResult]):
    """A step that was begun. It ends when every gradient is marked; waiting marks none."""

    def __init__(self, handle: Handle, weight: float) -> None:
        super().__init__(handle, (), _step_result, _raw.dsgd_step_begin, weight, None)

    def _flush(self) -> None:
        """Marks the gradients that are not marked yet as ready."""
        try:
            _raw.dsgd_step_flush(self._handle.pointer)
        except Error:
            if not self._op.ended():  # else its own error, or result, is the one to give
                raise


def _step_result(pointer: Any) -> StepResult:
    return StepResult(*_raw.dsgd_op_step_result(pointer))


class _Queue:
    """Hands the ends of operations, from a session's completion queue, to the event loops that await them."""

    def __init__(self, handle: Handle) -> None:
        # Only the pointer: the Handle refers to this object. The awaiting code holds an Operation, and that the Handle.
        self._session = handle.pointer
        self._fd = _raw.dsgd_queue_fd(handle.pointer)
        self._lock = threading.Lock()
        self._waiters: Set[_Waiter] = set()
        self._readers: Dict[asyncio.AbstractEventLoop, int] = {}

    async def ended(self, op: Pending) -> None:
        loop = asyncio.get_running_loop()
        waiter = _Waiter(int(_raw.dsgd_op_id(op.pointer)), loop)
        with self._lock:
            self._waiters.add(waiter)
            self._readers[loop] = self._readers.get(loop, 0) + 1
            if self._readers[loop] == 1:
                loop.add_reader(self._fd, self._drain)
        try:
            # It may have ended, and left the queue for another waiter, before this one was registered.
            if not op.ended():
                await waiter.future
        finally:
            with self._lock:
                self._waiters.discard(waiter)
                self._readers[loop] -= 1
                if self._readers[loop] == 0:
                    del self._readers[loop]
                    loop.remove_reader(self._fd)

    def _drain(self) -> None:
        while True:
            try:
                ids = set(_raw.dsgd_queue_poll(self._session, 0))
            except WaitTimeoutError:
                return
            except Error:
                self.wake_all()  # each finds its own error
                return
            with self._lock:
                found = [waiter for waiter in self._waiters if waiter.op_id in ids]
            for waiter in found:
                waiter.wake()

    def wake_all(self) -> None:
        with self._lock:
            found = list(self._waiters)
        for waiter in found:
            waiter.wake()


class _Waiter:
    def __init__(self, op_id: int, loop: asyncio.AbstractEventLoop) -> None:
        self.op_id = op_id
        self._loop = loop
        self.future: "asyncio.Future[None]" = loop.create_future()

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:
            pass  # that loop is closed: nobody waits there

    def _finish(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


_QUEUES_LOCK = threading.Lock()


def _queue_of(handle: Handle) -> _Queue:
    with _QUEUES_LOCK:
        queue: Optional[_Queue] = getattr(handle, "queue", None)
        if queue is None:
            queue = _Queue(handle)
            handle.queue = queue  # type: ignore[attr-defined]
            handle.on_close.append(queue.wake_all)
        return queue

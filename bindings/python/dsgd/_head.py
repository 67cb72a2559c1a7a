"""A head that runs outside the workers."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Optional

from . import _raw
from ._config import Config, config_from
from ._errors import ClosedError
from ._handle import interruptible, wait_in_slices


_LIVE: "weakref.WeakSet[Head]" = weakref.WeakSet()


class Head:
    """Serves one job until it is closed: `with dsgd.Head(head="127.0.0.1:0", num_workers=4) as head: ...`

    With the key `head_state`, a path, the head keeps its job in that file. If the head is lost, the workers train on and dial it
    again, for `head_timeout`. A head that is then started at the same address, with the same file, keys and token, goes on with the
    job. close() does not remove the file; the end of the job does. With `head_state` = "etcd://HOST:PORT/PREFIX" several heads of a
    job may run on several machines: one serves, the others stand by. The workers' key `head` lists the addresses of all.
    """

    def __init__(self, config: Optional[Config] = None, **options: Any) -> None:
        served = config_from(config, options)  # must live until the call has ended
        self._pointer = interruptible(lambda: _raw.dsgd_head_start(served._pointer), abandoned=_raw.dsgd_head_free)
        self.address: str = _raw.dsgd_head_address(self._pointer)  #: what workers are told, with the real port
        self._finalizer = weakref.finalize(self, _raw.dsgd_head_free, self._pointer)
        self._finalizer.atexit = False  # another thread may be within a call; close_heads sees to it
        self._lock = threading.Condition()
        self._closing = False
        self._waiting = 0  # threads within dsgd_head_wait
        _LIVE.add(self)

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until the job has ended, or raises what broke it; WaitTimeoutError after `timeout` seconds."""
        wait_in_slices(self._wait, timeout)

    def _wait(self, timeout_ms: int) -> None:
        with self._lock:
            if self._closing:
                raise ClosedError(f"the head at {self.address} was closed")
            self._waiting += 1
        try:
            _raw.dsgd_head_wait(self._pointer, timeout_ms)
        finally:
            with self._lock:
                self._waiting -= 1
                if self._closing and self._waiting == 0:
                    self._finalizer()
                    self._lock.notify_all()

    def close(self) -> None:
        """Stops it. Never blocks; closing twice is fine. A wait in another thread ends first, and soon."""
        with self._lock:
            self._closing = True
            if self._waiting == 0:
                self._finalizer()

    def __enter__(self) -> "Head":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def close_heads() -> None:
    """At exit: as Handle's close_all. Waits no longer than a thread takes to leave its wait."""
    for head in list(_LIVE):
        head.close()
        with head._lock:
            head._lock.wait_for(lambda: head._waiting == 0, timeout=1)

"""dsgd's log records into `logging`, under the logger "dsgd"."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any, List, Optional

from . import _raw
from ._errors import Error, WaitTimeoutError, in_python
from ._handle import Handle
from ._tables import LogLevel
from ._types import LogRecord

# It has no handler: a program that has not configured logging sees warnings and errors on stderr (logging.lastResort).
logger = logging.getLogger("dsgd")

_LEVELS = {level.value: getattr(logging, level.name) for level in LogLevel}  # the names are the same
_POLL_MS = 200

_threads: List[threading.Thread] = []


def poll(session: Any, timeout_ms: int) -> LogRecord:
    record = _raw.dsgd_log_poll(session, timeout_ms)
    try:
        level = _raw.dsgd_log_record_level(record)
        return LogRecord(
            _LEVELS.get(level, logging.DEBUG),
            in_python(_raw.dsgd_log_record_message(record)),
            _raw.dsgd_log_record_time_ns(record),
            _raw.dsgd_log_record_session(record),
            _raw.dsgd_log_record_rank(record),
        )
    finally:
        _raw.dsgd_log_record_free(record)


def forward(handle: Handle, on_stderr: bool = False) -> None:
    """Starts the thread that forwards a session's records. It ends when the session is closed or dropped.

    on_stderr: dsgd itself writes the records to standard error (log_to=stderr).
    """
    thread = threading.Thread(target=_run, args=(weakref.ref(handle), on_stderr), name="dsgd-logs", daemon=True)
    _threads[:] = [known for known in _threads if known.is_alive()]
    _threads.append(thread)
    thread.start()


def _log(made: LogRecord, on_stderr: bool) -> None:
    if not logger.isEnabledFor(made.level):
        return
    if on_stderr and not logger.hasHandlers():
        return  # logging.lastResort would write it to stderr again
    extra = {"session": made.session, "rank": made.rank}
    record = logger.makeRecord(logger.name, made.level, "(dsgd)", 0, made.message, (), None, extra=extra)
    record.created, record.msecs = made.time_ns / 1e9, made.time_ns // 1_000_000 % 1000
    logger.handle(record)


def _run(reference: "weakref.ref[Handle]", on_stderr: bool) -> None:
    while True:
        handle: Optional[Handle] = reference()
        if handle is None:
            return
        try:
            made = poll(handle.pointer, _POLL_MS)
        except WaitTimeoutError:
            continue
        except Error:
            return  # closed and empty, or a forked child
        finally:
            del handle
        try:
            _log(made, on_stderr)
        except Exception:  # a handler of the host's must not end the forwarding
            logging.getLogger(__name__).debug("a log handler failed", exc_info=True)


def join() -> None:
    """At exit, when the sessions are closed: no thread of ours may be within a call when the interpreter goes."""
    for thread in _threads:
        thread.join(timeout=2 * _POLL_MS / 1000)

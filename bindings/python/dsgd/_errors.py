"""The exceptions: one class per status code of dsgd.h."""

from __future__ import annotations

import builtins
from typing import Any, Dict, Optional, Type


class Error(Exception):
    """What went wrong, where, and what to do.

    code: the number of dsgd.h, negative.  status: its name.  rank: the rank concerned, or None.  host, operation,
    parameter: what is concerned, "" if nothing.  message: the whole sentence.
    """

    __module__ = "dsgd"  # tracebacks name the exceptions as hosts import them

    code: int = 0
    status: str = "DSGD_ERR_UNKNOWN"

    def __init__(
        self,
        message: str = "",
        *,
        code: Optional[int] = None,
        rank: Optional[int] = None,
        host: str = "",
        operation: str = "",
        parameter: str = "",
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.message = message
        self.rank = rank
        self.host = host
        self.operation = operation
        self.parameter = parameter

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Any:
        # Exceptions cross processes (multiprocessing, concurrent.futures); keyword arguments would be lost.
        return _rebuild, (type(self), self.message, dict(self.__dict__))


def _rebuild(kind: Type[Error], message: str, attributes: Dict[str, Any]) -> Error:
    error = kind(message)
    error.__dict__.update(attributes)
    return error


class InvalidArgumentError(Error, ValueError):
    """An argument, key, option or size is wrong."""


class StateError(Error, RuntimeError):
    """The right call at the wrong moment: a step before start, a gradient ready twice."""


class ClosedError(Error):
    """The session was closed."""


class ForkedError(Error):
    """Called in a forked child of the process that made the object."""


class TimeoutError(Error, builtins.TimeoutError):
    """The operation's deadline passed; the message names who is missing."""


class WaitTimeoutError(Error, builtins.TimeoutError):
    """This wait ran out; the operation goes on and its buffers stay dsgd's."""


class AbortedError(Error):
    """A worker called abort; the message says who and why."""


class WorkerLostError(Error, ConnectionError):
    """A worker or the head died, stopped, left or cannot be reached."""


class MismatchError(Error, ValueError):
    """Workers disagree: names, shapes, dtypes, order of operations, settings."""


class NotFoundError(Error, LookupError):
    """No such name, file or object."""


class ExistsError(Error):
    """The name or the worker id is taken."""


class UnauthorizedError(Error, PermissionError):
    """Wrong token or job name."""


class UnreachableError(Error, ConnectionError):
    """An address cannot be resolved or connected to."""


class AddressInUseError(Error, OSError):
    """The address to listen on is taken."""


class NoMemoryError(Error, MemoryError):
    """Memory is exhausted."""


class LimitError(Error):
    """A limit of the system or of dsgd is reached."""


class FileError(Error, OSError):
    """Reading or writing a file failed."""


class UnsupportedError(Error):
    """Known, but not in this build or not for these arguments."""


class TornError(Error):
    """An earlier step failed half-way; load a checkpoint or start a new session."""


class InternalError(Error):
    """A defect of dsgd; please report the message."""


class DivergedError(Error):
    """Workers or replicas hold different models; load a checkpoint or start a new session."""


class CorruptedError(Error, OSError):
    """Received bytes failed their checksum."""


_CLASSES: Dict[int, Type[Error]] = {}


def _number(kind: Type[Error], code: int, status: str) -> None:
    kind.code, kind.status, kind.__module__ = code, status, Error.__module__
    _CLASSES[code] = kind


_number(InvalidArgumentError, -1, "DSGD_ERR_INVALID_ARGUMENT")
_number(StateError, -2, "DSGD_ERR_STATE")
_number(ClosedError, -3, "DSGD_ERR_CLOSED")
_number(ForkedError, -4, "DSGD_ERR_FORKED")
_number(TimeoutError, -5, "DSGD_ERR_TIMEOUT")
_number(WaitTimeoutError, -6, "DSGD_ERR_WAIT_TIMEOUT")
_number(AbortedError, -7, "DSGD_ERR_ABORTED")
_number(WorkerLostError, -8, "DSGD_ERR_WORKER_LOST")
_number(MismatchError, -9, "DSGD_ERR_MISMATCH")
_number(NotFoundError, -10, "DSGD_ERR_NOT_FOUND")
_number(ExistsError, -11, "DSGD_ERR_EXISTS")
_number(UnauthorizedError, -12, "DSGD_ERR_UNAUTHORIZED")
_number(UnreachableError, -13, "DSGD_ERR_UNREACHABLE")
_number(AddressInUseError, -14, "DSGD_ERR_ADDRESS_IN_USE")
_number(NoMemoryError, -15, "DSGD_ERR_NO_MEMORY")
_number(LimitError, -16, "DSGD_ERR_LIMIT")
_number(FileError, -17, "DSGD_ERR_IO")
_number(UnsupportedError, -18, "DSGD_ERR_UNSUPPORTED")
_number(TornError, -19, "DSGD_ERR_TORN")
_number(InternalError, -20, "DSGD_ERR_INTERNAL")
_number(DivergedError, -21, "DSGD_ERR_DIVERGED")
_number(CorruptedError, -22, "DSGD_ERR_CORRUPTED")


def from_status(code: int, message: str, rank: int, host: str, operation: str, parameter: str) -> Error:
    """Called by the raw module. A newer library may return codes without a class here: they are plain Errors."""
    kind = _CLASSES.get(code, Error)
    return kind(
        message or (kind.__doc__ or kind.status).strip(),
        code=code,
        rank=rank if rank >= 0 else None,
        host=host,
        operation=operation,
        parameter=parameter,
    )

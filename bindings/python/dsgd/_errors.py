"""The exceptions: Error with a Status, and subclasses for the errors that programs catch."""

from __future__ import annotations

import builtins
import re
from typing import Any, Dict, Optional, Type

from ._tables import NAMES, Status


class Error(Exception):
    """What went wrong, where, and what to do.

    status: the kind of the error.  code: its number in dsgd.h, negative.  rank: the rank concerned, or None.  host,
    operation, parameter: what is concerned, "" if nothing.  message: the whole sentence.
    """

    __module__ = "dsgd"  # tracebacks name the exceptions as hosts import them

    status: Status = Status.UNKNOWN

    def __init__(
        self,
        message: str = "",
        *,
        status: Optional[Status] = None,
        code: Optional[int] = None,
        rank: Optional[int] = None,
        host: str = "",
        operation: str = "",
        parameter: str = "",
    ) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status
        self.code = int(self.status) if code is None else code
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

    status = Status.INVALID_ARGUMENT


class StateError(Error, RuntimeError):
    """The right call at the wrong moment: a step before start, a gradient ready twice."""

    status = Status.STATE


class ClosedError(Error):
    """The session was closed."""

    status = Status.CLOSED


class TimeoutError(Error, builtins.TimeoutError):
    """The operation's deadline passed; the message names who is missing."""

    status = Status.TIMEOUT


class WaitTimeoutError(Error, builtins.TimeoutError):
    """This wait ran out; the operation goes on and its buffers stay dsgd's."""

    status = Status.WAIT_TIMEOUT


class WorkerLostError(Error, ConnectionError):
    """A worker or the head died, stopped, left or cannot be reached."""

    status = Status.WORKER_LOST


class MismatchError(Error, ValueError):
    """Workers disagree: names, shapes, dtypes, order of operations, settings."""

    status = Status.MISMATCH


_BY_STATUS: Dict[Status, Type[Error]] = {kind.status: kind for kind in Error.__subclasses__()}
for _kind in _BY_STATUS.values():
    _kind.__module__ = Error.__module__

# A value in a message is quoted, and stays as it is.
_C_NAME = re.compile(r"(?<![\w'/.-])(?:dsgd|DSGD)_\w+")


def in_python(text: str) -> str:
    """A text of the library with Python's names in the place of C's."""
    return _C_NAME.sub(lambda match: NAMES.get(match[0], match[0]), text)


def status_of(code: int) -> Status:
    return Status(code) if code < 0 and code in Status._value2member_map_ else Status.UNKNOWN


def status_text(code: int, function: str) -> str:
    """For functions of C that return a status and no message. Called by the raw module."""
    if code == Status.CLOSED:
        return f"{function}: the session is closed; open a new one with dsgd.init"
    return f"{function} failed with status {status_of(code).name} ({code})"


def from_status(code: int, message: str, rank: int, host: str, operation: str, parameter: str) -> Error:
    """Called by the raw module."""
    status = status_of(code)
    return _BY_STATUS.get(status, Error)(
        in_python(message) or f"the call failed with status {status.name} ({code})",
        status=status,
        code=code,
        rank=rank if rank >= 0 else None,
        host=host,
        operation=in_python(operation),
        parameter=parameter,
    )

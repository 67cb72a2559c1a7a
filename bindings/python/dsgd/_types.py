"""Small value types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

from ._errors import InvalidArgumentError
from ._tables import DType, Reduction, SessionState


def dtype_of(dtype: Any) -> DType:
    """From a DType, a name, or what NumPy, PyTorch and JAX call a dtype."""
    if isinstance(dtype, DType):
        return dtype
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype))
    try:
        return DType[str(name).rpartition(".")[2]]
    except KeyError:
        names = ", ".join(known.name for known in DType)
        raise InvalidArgumentError(f"unknown dtype {dtype!r}; use one of {names}") from None


def reduction_of(reduction: Union[str, Reduction]) -> Reduction:
    if isinstance(reduction, Reduction):
        return reduction
    try:
        return Reduction[reduction]
    except (KeyError, TypeError):
        names = ", ".join(known.name for known in Reduction)
        raise InvalidArgumentError(f"unknown reduction {reduction!r}; use one of {names}") from None


@dataclass(frozen=True)
class StepResult:
    """What a step did."""

    step: int  #: index of the step, from 0
    view: int  #: view in which it completed
    size: int  #: workers in that view
    applied: bool  #: False: all weights were 0, or `skipped`
    all_done: bool  #: no data is left: all remaining workers gave weight 0
    stop: bool  #: some worker had called request_stop
    weight: float  #: sum of all contribution weights
    gradient_norm: float  #: L2 norm of the mean gradient before clipping; NaN if not measured, if all weights were 0, or if `nonfinite` skipped the step
    nonfinite: int  #: elements of gradients with NaN or infinity, over all workers; 0 if the key `nonfinite` is off
    nonfinite_rank: int  #: lowest rank that has some; -1: none
    skipped: bool  #: no update, since gradients, or with `loss_scale` their mean, were not finite


def state_of(number: int) -> SessionState:
    try:
        return SessionState(number)
    except ValueError:
        return SessionState.UNKNOWN


@dataclass(frozen=True)
class SessionInfo:
    """Membership and progress of a session at one moment."""

    id: int  #: number of the session, unique in the process
    view: int  #: number of the view
    steps: int  #: number of steps that have succeeded, which is the index of the next one
    state: SessionState
    rank: int  #: 0 .. size-1
    size: int  #: number of workers
    local_rank: int  #: rank among the workers on this node
    local_size: int  #: number of workers on this node
    replicas: int  #: entries of `devices` for this worker: how often Session.add_replica() takes the next one


@dataclass(frozen=True)
class LogRecord:
    """One record of a session's log."""

    level: int  #: of `logging`
    message: str
    time_ns: int  #: Unix time of its making, in nanoseconds
    session: int  #: number of the session, unique in the process
    rank: int  #: of the session; -1 as long as it is not known


@dataclass(frozen=True)
class ConfigKey:
    """One row of the table of configuration keys."""

    name: str
    type: str
    default: str
    range: str
    help: str
    environment: str

"""Data-parallel stochastic gradient descent, for replicas in Python and in other languages.

    import dsgd, numpy

    with dsgd.init(head="127.0.0.1:7700", num_workers=4) as session:
        weight = session.add_parameter("weight", (64, 10))
        value, gradient = session.add_replica().alloc(weight)
        session.set_optimizer("sgd", lr=0.1, momentum=0.9)
        session.start()                                   # all workers hold rank 0's values
        for batch in session.shard(1797).batches(64):
            gradient[:] = compute_gradient(value, batch)
            session.step(len(batch))                      # the mean weighs this worker by its samples
"""

from ._not_built import explained, refuse_free_threaded

refuse_free_threaded()
try:
    from . import _raw
except ImportError as _error:
    raise explained(_error) from None

from ._config import Config, capability, config_keys
from ._errors import (
    ClosedError,
    Error,
    InvalidArgumentError,
    MismatchError,
    StateError,
    TimeoutError,
    WaitTimeoutError,
    WorkerLostError,
)
from ._collectives import Channel
from ._head import Head
from ._operation import Operation, StepOperation
from ._replica import Parameter, Replica, Tensor, UntrainedParameter
from ._session import Session, init, init_async
from ._shard import Shard
from ._tables import DType, Reduction, SessionState, Status
from ._types import ConfigKey, SessionInfo, StepResult

__version__: str = _raw.dsgd_version_string()

__all__ = [
    "Channel",
    "ClosedError",
    "Config",
    "ConfigKey",
    "DType",
    "Error",
    "Head",
    "InvalidArgumentError",
    "MismatchError",
    "Operation",
    "Parameter",
    "Reduction",
    "Replica",
    "Session",
    "SessionInfo",
    "SessionState",
    "Shard",
    "StateError",
    "Status",
    "StepOperation",
    "StepResult",
    "Tensor",
    "TimeoutError",
    "UntrainedParameter",
    "WaitTimeoutError",
    "WorkerLostError",
    "capability",
    "config_keys",
    "init",
    "init_async",
]

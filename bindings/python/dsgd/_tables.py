"""The enums of dsgd.h, and the names of its functions in Python. Made from dsgd.h by bindings/tables/generate; do not edit."""

from __future__ import annotations

import enum
from typing import Dict

from ._element import Element


class Status(enum.IntEnum):
    """The kind of an error."""

    INVALID_ARGUMENT = -1  #: an argument, key, option or size is wrong
    STATE = -2  #: right call, wrong moment: step before start, gradient ready twice
    CLOSED = -3  #: the session was closed
    FORKED = -4  #: called in a forked child of the process that made the handle
    TIMEOUT = -5  #: the operation's deadline passed; the message names who is missing
    WAIT_TIMEOUT = -6  #: this wait ran out; the operation goes on and its buffers stay dsgd's
    ABORTED = -7  #: a worker called Session.abort; the message says which and why
    WORKER_LOST = -8  #: a worker or the head died, stopped, left or cannot be reached
    MISMATCH = -9  #: workers disagree: names, shapes, dtypes, order of operations, settings
    NOT_FOUND = -10  #: no such name, file or object
    EXISTS = -11  #: the name or the worker id is taken
    UNAUTHORIZED = -12  #: wrong token, job name or certificate, on either side
    UNREACHABLE = -13  #: an address cannot be resolved or connected to
    ADDRESS_IN_USE = -14  #: the address to listen on is taken
    NO_MEMORY = -15
    LIMIT = -16  #: a limit of the system or of dsgd is reached (file descriptors, sizes)
    IO = -17  #: reading or writing a file failed
    UNSUPPORTED = -18  #: known, but not in this build or not for these arguments
    TORN = -19  #: an earlier step failed half-way; load a checkpoint or start a new session
    INTERNAL = -20  #: a defect of dsgd; please report the message
    DIVERGED = -21  #: workers or replicas hold different models; load a checkpoint or start anew
    CORRUPTED = -22  #: received bytes failed their checksum; have the network checked
    VIEW_CHANGED = -23  #: a worker was lost or has joined; the job goes on without this call
    NON_FINITE = -24  #: gradients of the step have NaN or infinity, with `nonfinite` = fail
    EVICTED = -25  #: the other workers go on without this one; it can only join another job
    UNKNOWN = 1  #: a code of a newer library; Error.code is its number


class DType(Element):
    """An element type."""

    float32 = 0
    float64 = 1
    int32 = 2
    int64 = 3
    uint8 = 4
    float16 = 5  #: IEEE 754 binary16
    bfloat16 = 6  #: the upper half of a float32
    int8 = 7
    uint64 = 8


class Reduction(enum.IntEnum):
    """How a collective combines the elements of the workers; integer sums wrap around, and the mean is for floating point."""

    sum = 0
    min = 1
    max = 2
    prod = 3
    mean = 4


class SessionState(enum.IntEnum):
    """Whether a session can make steps."""

    JOINING = 0  #: the session has not joined; its rank is 0 and its size 1 until it has
    JOINED = 1  #: Session.start has not succeeded yet
    STARTED = 2  #: the next step can begin
    TORN = 3  #: a step failed half-way or models differ; steps fail, collectives go on
    FAILED = 4  #: the session has failed; calls return its failure until it is closed
    CLOSED = 5  #: Session.close was called
    UNKNOWN = -1  #: a state of a newer library


class LogLevel(enum.IntEnum):
    """The severity of a log record; lower is more severe."""

    ERROR = 0
    WARNING = 1
    INFO = 2
    DEBUG = 3


NAMES: Dict[str, str] = {
    "DSGD_BFLOAT16": "DType.bfloat16",
    "DSGD_ERR_ABORTED": "Status.ABORTED",
    "DSGD_ERR_ADDRESS_IN_USE": "Status.ADDRESS_IN_USE",
    "DSGD_ERR_CLOSED": "Status.CLOSED",
    "DSGD_ERR_CORRUPTED": "Status.CORRUPTED",
    "DSGD_ERR_DIVERGED": "Status.DIVERGED",
    "DSGD_ERR_EVICTED": "Status.EVICTED",
    "DSGD_ERR_EXISTS": "Status.EXISTS",
    "DSGD_ERR_FORKED": "Status.FORKED",
    "DSGD_ERR_INTERNAL": "Status.INTERNAL",
    "DSGD_ERR_INVALID_ARGUMENT": "Status.INVALID_ARGUMENT",
    "DSGD_ERR_IO": "Status.IO",
    "DSGD_ERR_LIMIT": "Status.LIMIT",
    "DSGD_ERR_MISMATCH": "Status.MISMATCH",
    "DSGD_ERR_NON_FINITE": "Status.NON_FINITE",
    "DSGD_ERR_NOT_FOUND": "Status.NOT_FOUND",
    "DSGD_ERR_NO_MEMORY": "Status.NO_MEMORY",
    "DSGD_ERR_STATE": "Status.STATE",
    "DSGD_ERR_TIMEOUT": "Status.TIMEOUT",
    "DSGD_ERR_TORN": "Status.TORN",
    "DSGD_ERR_UNAUTHORIZED": "Status.UNAUTHORIZED",
    "DSGD_ERR_UNREACHABLE": "Status.UNREACHABLE",
    "DSGD_ERR_UNSUPPORTED": "Status.UNSUPPORTED",
    "DSGD_ERR_VIEW_CHANGED": "Status.VIEW_CHANGED",
    "DSGD_ERR_WAIT_TIMEOUT": "Status.WAIT_TIMEOUT",
    "DSGD_ERR_WORKER_LOST": "Status.WORKER_LOST",
    "DSGD_FLOAT16": "DType.float16",
    "DSGD_FLOAT32": "DType.float32",
    "DSGD_FLOAT64": "DType.float64",
    "DSGD_INT32": "DType.int32",
    "DSGD_INT64": "DType.int64",
    "DSGD_INT8": "DType.int8",
    "DSGD_LOG_DEBUG": "LogLevel.DEBUG",
    "DSGD_LOG_ERROR": "LogLevel.ERROR",
    "DSGD_LOG_INFO": "LogLevel.INFO",
    "DSGD_LOG_WARNING": "LogLevel.WARNING",
    "DSGD_MAX": "Reduction.max",
    "DSGD_MEAN": "Reduction.mean",
    "DSGD_MIN": "Reduction.min",
    "DSGD_PROD": "Reduction.prod",
    "DSGD_SESSION_CLOSED": "SessionState.CLOSED",
    "DSGD_SESSION_FAILED": "SessionState.FAILED",
    "DSGD_SESSION_JOINED": "SessionState.JOINED",
    "DSGD_SESSION_JOINING": "SessionState.JOINING",
    "DSGD_SESSION_STARTED": "SessionState.STARTED",
    "DSGD_SESSION_TORN": "SessionState.TORN",
    "DSGD_SHARD_SEQUENTIAL": "shuffle=False",
    "DSGD_SUM": "Reduction.sum",
    "DSGD_UINT64": "DType.uint64",
    "DSGD_UINT8": "DType.uint8",
    "DSGD_UNTRAINED": "trained=False",
    "dsgd_abort": "Session.abort",
    "dsgd_allgather": "Session.allgather",
    "dsgd_alloc": "Replica.alloc",
    "dsgd_allreduce": "Session.allreduce",
    "dsgd_barrier": "Session.barrier",
    "dsgd_bind": "Replica.bind",
    "dsgd_bind_dlpack": "Replica.bind",
    "dsgd_broadcast": "Session.broadcast",
    "dsgd_capability": "dsgd.capability",
    "dsgd_checkpoint_load": "Session.load_checkpoint",
    "dsgd_checkpoint_save": "Session.save_checkpoint",
    "dsgd_close": "Session.close",
    "dsgd_config": "Config",
    "dsgd_config_key": "ConfigKey",
    "dsgd_config_key_at": "dsgd.config_keys",
    "dsgd_config_key_count": "dsgd.config_keys",
    "dsgd_config_key_init": "dsgd.config_keys",
    "dsgd_config_load": "Config.load",
    "dsgd_config_log_hook": "Session.poll_log",
    "dsgd_config_new": "Config",
    "dsgd_config_set": "Config.update",
    "dsgd_config_value": "Config.get",
    "dsgd_digest": "Session.digest",
    "dsgd_dtype": "DType",
    "dsgd_dtype_size": "DType.itemsize",
    "dsgd_error": "Error",
    "dsgd_error_code": "Error.code",
    "dsgd_error_host": "Error.host",
    "dsgd_error_message": "Error.message",
    "dsgd_error_operation": "Error.operation",
    "dsgd_error_parameter": "Error.parameter",
    "dsgd_error_rank": "Error.rank",
    "dsgd_export_dlpack": "Replica.alloc_tensors",
    "dsgd_fail": "Session.fail",
    "dsgd_finalize": "Session.close",
    "dsgd_gradient_absent": "Replica.gradient_absent",
    "dsgd_gradient_ready": "Replica.gradient_ready",
    "dsgd_gradients_ready": "Replica.gradients_ready",
    "dsgd_group": "Session",
    "dsgd_head": "Head",
    "dsgd_head_address": "Head.address",
    "dsgd_head_free": "Head.close",
    "dsgd_head_start": "Head",
    "dsgd_head_wait": "Head.wait",
    "dsgd_init": "dsgd.init",
    "dsgd_init_begin": "dsgd.init",
    "dsgd_learning_rate_set": "Session.set_learning_rate",
    "dsgd_local_rank": "Session.local_rank",
    "dsgd_local_size": "Session.local_size",
    "dsgd_log_fd": "Session.poll_log",
    "dsgd_log_level": "logging",
    "dsgd_log_poll": "Session.poll_log",
    "dsgd_log_record": "logging.LogRecord",
    "dsgd_log_record_level": "Session.poll_log",
    "dsgd_log_record_message": "Session.poll_log",
    "dsgd_log_record_rank": "Session.poll_log",
    "dsgd_log_record_session": "Session.poll_log",
    "dsgd_log_record_time_ns": "Session.poll_log",
    "dsgd_loss_scale": "Session.loss_scale",
    "dsgd_memory": "memoryview",
    "dsgd_memory_get": "Replica.alloc",
    "dsgd_memory_gradient": "Replica.alloc",
    "dsgd_memory_nbytes": "Replica.alloc",
    "dsgd_memory_value": "Replica.alloc",
    "dsgd_metrics": "Session.metrics",
    "dsgd_object": "memoryview",
    "dsgd_object_data": "Session.get",
    "dsgd_object_delete": "Session.delete",
    "dsgd_object_dtype": "Session.get",
    "dsgd_object_get": "Session.get",
    "dsgd_object_nbytes": "Session.get",
    "dsgd_object_ndim": "Session.get",
    "dsgd_object_put": "Session.put",
    "dsgd_object_shape": "Session.get",
    "dsgd_op": "Operation",
    "dsgd_op_abort": "Session.abort",
    "dsgd_op_id": "Operation.id",
    "dsgd_op_object": "Session.get",
    "dsgd_op_options": "Session.channel",
    "dsgd_op_options_init": "Session.channel",
    "dsgd_op_step_result": "Operation.wait",
    "dsgd_op_test": "Operation.done",
    "dsgd_op_wait": "Operation.wait",
    "dsgd_optimizer_set": "Session.set_optimizer",
    "dsgd_parameter": "Parameter",
    "dsgd_parameter_add": "Session.add_parameter",
    "dsgd_parameter_flag": "trained",
    "dsgd_parameter_name": "Parameter.name",
    "dsgd_parameter_set": "Parameter.set",
    "dsgd_queue_fd": "Operation.__await__",
    "dsgd_queue_poll": "Operation.wait",
    "dsgd_rank": "Session.rank",
    "dsgd_reduce_scatter": "Session.reduce_scatter",
    "dsgd_reduction": "Reduction",
    "dsgd_replica": "Replica",
    "dsgd_replica_add": "Session.add_replica",
    "dsgd_replica_device": "Replica.device",
    "dsgd_replica_weight": "Replica.set_weight",
    "dsgd_session": "Session",
    "dsgd_session_info": "SessionInfo",
    "dsgd_session_info_init": "SessionInfo",
    "dsgd_session_info_read": "Session.info",
    "dsgd_session_state": "SessionState",
    "dsgd_shard": "Shard",
    "dsgd_shard_current_epoch": "Shard.epoch",
    "dsgd_shard_epoch": "Shard.set_epoch",
    "dsgd_shard_flag": "shuffle",
    "dsgd_shard_new": "Session.shard",
    "dsgd_shard_next": "Shard.next",
    "dsgd_shard_position": "Shard.position",
    "dsgd_shard_seek": "Shard.seek",
    "dsgd_shard_size": "len(Shard)",
    "dsgd_size": "Session.size",
    "dsgd_start": "Session.start",
    "dsgd_status": "Status",
    "dsgd_status_name": "Error.status",
    "dsgd_step": "Session.step",
    "dsgd_step_begin": "Session.step_begin",
    "dsgd_step_flush": "Session.step_flush",
    "dsgd_step_result": "StepResult",
    "dsgd_step_result_init": "StepResult",
    "dsgd_stop_request": "Session.request_stop",
    "dsgd_strategy_set": "Session.set_strategy",
    "dsgd_stream_wait": "Replica.stream_wait",
    "dsgd_trace": "Session.trace",
    "dsgd_version": "dsgd.__version__",
    "dsgd_version_string": "dsgd.__version__",
    "dsgd_view": "Session.view",
}

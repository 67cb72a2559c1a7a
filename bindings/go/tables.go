// Code generated from dsgd.h by bindings/tables/generate. DO NOT EDIT.

package dsgd

// Status is the kind of an error. Statuses are errors themselves, for errors.Is. A newer library may return numbers
// that are not listed here.
type Status int32

const (
	ErrInvalidArgument Status = -1  // an argument, key, option or size is wrong
	ErrState           Status = -2  // right call, wrong moment: step before start, gradient ready twice
	ErrClosed          Status = -3  // the session was closed
	ErrForked          Status = -4  // called in a forked child of the process that made the handle
	ErrTimeout         Status = -5  // the operation's deadline passed; the message names who is missing
	ErrWaitTimeout     Status = -6  // this wait ran out; the operation goes on and its buffers stay dsgd's
	ErrAborted         Status = -7  // a worker called Session.Abort; the message says which and why
	ErrWorkerLost      Status = -8  // a worker or the head died, stopped, left or cannot be reached
	ErrMismatch        Status = -9  // workers disagree: names, shapes, dtypes, order of operations, settings
	ErrNotFound        Status = -10 // no such name, file or object
	ErrExists          Status = -11 // the name or the worker id is taken
	ErrUnauthorized    Status = -12 // wrong token, job name or certificate, on either side
	ErrUnreachable     Status = -13 // an address cannot be resolved or connected to
	ErrAddressInUse    Status = -14 // the address to listen on is taken
	ErrNoMemory        Status = -15
	ErrLimit           Status = -16 // a limit of the system or of dsgd is reached (file descriptors, sizes)
	ErrIO              Status = -17 // reading or writing a file failed
	ErrUnsupported     Status = -18 // known, but not in this build or not for these arguments
	ErrTorn            Status = -19 // an earlier step failed half-way; load a checkpoint or start a new session
	ErrInternal        Status = -20 // a defect of dsgd; please report the message
	ErrDiverged        Status = -21 // workers or replicas hold different models; load a checkpoint or start anew
	ErrCorrupted       Status = -22 // received bytes failed their checksum; have the network checked
	ErrViewChanged     Status = -23 // a worker was lost or has joined; the job goes on without this call
	ErrNonFinite       Status = -24 // gradients of the step have NaN or infinity, with `nonfinite` = fail
	ErrEvicted         Status = -25 // the other workers go on without this one; it can only join another job
)

// String is the name of the Status.
func (v Status) String() string {
	switch v {
	case ErrInvalidArgument:
		return "ErrInvalidArgument"
	case ErrState:
		return "ErrState"
	case ErrClosed:
		return "ErrClosed"
	case ErrForked:
		return "ErrForked"
	case ErrTimeout:
		return "ErrTimeout"
	case ErrWaitTimeout:
		return "ErrWaitTimeout"
	case ErrAborted:
		return "ErrAborted"
	case ErrWorkerLost:
		return "ErrWorkerLost"
	case ErrMismatch:
		return "ErrMismatch"
	case ErrNotFound:
		return "ErrNotFound"
	case ErrExists:
		return "ErrExists"
	case ErrUnauthorized:
		return "ErrUnauthorized"
	case ErrUnreachable:
		return "ErrUnreachable"
	case ErrAddressInUse:
		return "ErrAddressInUse"
	case ErrNoMemory:
		return "ErrNoMemory"
	case ErrLimit:
		return "ErrLimit"
	case ErrIO:
		return "ErrIO"
	case ErrUnsupported:
		return "ErrUnsupported"
	case ErrTorn:
		return "ErrTorn"
	case ErrInternal:
		return "ErrInternal"
	case ErrDiverged:
		return "ErrDiverged"
	case ErrCorrupted:
		return "ErrCorrupted"
	case ErrViewChanged:
		return "ErrViewChanged"
	case ErrNonFinite:
		return "ErrNonFinite"
	case ErrEvicted:
		return "ErrEvicted"
	}
	return unknown("Status", int(v))
}

// DType is an element type.
type DType int32

const (
	Float32  DType = 0
	Float64  DType = 1
	Int32    DType = 2
	Int64    DType = 3
	Uint8    DType = 4
	Float16  DType = 5 // IEEE 754 binary16
	Bfloat16 DType = 6 // the upper half of a float32
	Int8     DType = 7
	Uint64   DType = 8
)

// String is the name of the DType.
func (v DType) String() string {
	switch v {
	case Float32:
		return "float32"
	case Float64:
		return "float64"
	case Int32:
		return "int32"
	case Int64:
		return "int64"
	case Uint8:
		return "uint8"
	case Float16:
		return "float16"
	case Bfloat16:
		return "bfloat16"
	case Int8:
		return "int8"
	case Uint64:
		return "uint64"
	}
	return unknown("DType", int(v))
}

// Reduction is how a collective combines the elements of the workers; integer sums wrap around, and the mean is for
// floating point.
type Reduction int32

const (
	Sum  Reduction = 0
	Min  Reduction = 1
	Max  Reduction = 2
	Prod Reduction = 3
	Mean Reduction = 4
)

// String is the name of the Reduction.
func (v Reduction) String() string {
	switch v {
	case Sum:
		return "sum"
	case Min:
		return "min"
	case Max:
		return "max"
	case Prod:
		return "prod"
	case Mean:
		return "mean"
	}
	return unknown("Reduction", int(v))
}

// SessionState is whether a session can make steps.
type SessionState int32

const (
	SessionJoining SessionState = 0 // the session has not joined; its rank is 0 and its size 1 until it has
	SessionJoined  SessionState = 1 // Session.Start has not succeeded yet
	SessionStarted SessionState = 2 // the next step can begin
	SessionTorn    SessionState = 3 // a step failed half-way or models differ; steps fail, collectives go on
	SessionFailed  SessionState = 4 // the session has failed; calls return its failure until it is closed
	SessionClosed  SessionState = 5 // Session.Close was called
)

// String is the name of the SessionState.
func (v SessionState) String() string {
	switch v {
	case SessionJoining:
		return "joining"
	case SessionJoined:
		return "joined"
	case SessionStarted:
		return "started"
	case SessionTorn:
		return "torn"
	case SessionFailed:
		return "failed"
	case SessionClosed:
		return "closed"
	}
	return unknown("SessionState", int(v))
}

// LogLevel is the severity of a log record; lower is more severe.
type LogLevel int32

const (
	LogError   LogLevel = 0
	LogWarning LogLevel = 1
	LogInfo    LogLevel = 2
	LogDebug   LogLevel = 3
)

// String is the name of the LogLevel.
func (v LogLevel) String() string {
	switch v {
	case LogError:
		return "error"
	case LogWarning:
		return "warning"
	case LogInfo:
		return "info"
	case LogDebug:
		return "debug"
	}
	return unknown("LogLevel", int(v))
}

// ParameterFlag is an option of a parameter.
type ParameterFlag uint32

const (
	Untrained ParameterFlag = 1 // state without gradient, such as a running mean; see Parameter.Set
)

// ShardFlag is an option of a shard.
type ShardFlag uint32

const (
	Sequential ShardFlag = 1 // do not shuffle
)

// Float16Bits are the bits of an element, for which Go has no type of its own: IEEE 754 binary16.
type Float16Bits uint16

// Bfloat16Bits are the bits of an element, for which Go has no type of its own: the upper half of a float32.
type Bfloat16Bits uint16

// Element is a Go type that buffers may be made of.
type Element interface {
	float32 | float64 | int32 | int64 | uint8 | Float16Bits | Bfloat16Bits | int8 | uint64
}

func dtypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case float32:
		return Float32
	case float64:
		return Float64
	case int32:
		return Int32
	case int64:
		return Int64
	case uint8:
		return Uint8
	case Float16Bits:
		return Float16
	case Bfloat16Bits:
		return Bfloat16
	case int8:
		return Int8
	case uint64:
		return Uint64
	}
	panic("dsgd: tables.go is stale")
}

// Size is the number of bytes of one element, 0 for an unknown type.
func (v DType) Size() int {
	switch v {
	case Uint8, Int8:
		return 1
	case Float16, Bfloat16:
		return 2
	case Float32, Int32:
		return 4
	case Float64, Int64, Uint64:
		return 8
	}
	return 0
}

// cNames are C's names of functions, types and constants, and Go's.
var cNames = map[string]string{}

func init() {
	for _, pair := range [...][2]string{
		{"DSGD_BFLOAT16", "Bfloat16"},
		{"DSGD_ERR_ABORTED", "ErrAborted"},
		{"DSGD_ERR_ADDRESS_IN_USE", "ErrAddressInUse"},
		{"DSGD_ERR_CLOSED", "ErrClosed"},
		{"DSGD_ERR_CORRUPTED", "ErrCorrupted"},
		{"DSGD_ERR_DIVERGED", "ErrDiverged"},
		{"DSGD_ERR_EVICTED", "ErrEvicted"},
		{"DSGD_ERR_EXISTS", "ErrExists"},
		{"DSGD_ERR_FORKED", "ErrForked"},
		{"DSGD_ERR_INTERNAL", "ErrInternal"},
		{"DSGD_ERR_INVALID_ARGUMENT", "ErrInvalidArgument"},
		{"DSGD_ERR_IO", "ErrIO"},
		{"DSGD_ERR_LIMIT", "ErrLimit"},
		{"DSGD_ERR_MISMATCH", "ErrMismatch"},
		{"DSGD_ERR_NON_FINITE", "ErrNonFinite"},
		{"DSGD_ERR_NOT_FOUND", "ErrNotFound"},
		{"DSGD_ERR_NO_MEMORY", "ErrNoMemory"},
		{"DSGD_ERR_STATE", "ErrState"},
		{"DSGD_ERR_TIMEOUT", "ErrTimeout"},
		{"DSGD_ERR_TORN", "ErrTorn"},
		{"DSGD_ERR_UNAUTHORIZED", "ErrUnauthorized"},
		{"DSGD_ERR_UNREACHABLE", "ErrUnreachable"},
		{"DSGD_ERR_UNSUPPORTED", "ErrUnsupported"},
		{"DSGD_ERR_VIEW_CHANGED", "ErrViewChanged"},
		{"DSGD_ERR_WAIT_TIMEOUT", "ErrWaitTimeout"},
		{"DSGD_ERR_WORKER_LOST", "ErrWorkerLost"},
		{"DSGD_FLOAT16", "Float16"},
		{"DSGD_FLOAT32", "Float32"},
		{"DSGD_FLOAT64", "Float64"},
		{"DSGD_INT32", "Int32"},
		{"DSGD_INT64", "Int64"},
		{"DSGD_INT8", "Int8"},
		{"DSGD_LOG_DEBUG", "LogDebug"},
		{"DSGD_LOG_ERROR", "LogError"},
		{"DSGD_LOG_INFO", "LogInfo"},
		{"DSGD_LOG_WARNING", "LogWarning"},
		{"DSGD_MAX", "Max"},
		{"DSGD_MEAN", "Mean"},
		{"DSGD_MIN", "Min"},
		{"DSGD_PROD", "Prod"},
		{"DSGD_SESSION_CLOSED", "SessionClosed"},
		{"DSGD_SESSION_FAILED", "SessionFailed"},
		{"DSGD_SESSION_JOINED", "SessionJoined"},
		{"DSGD_SESSION_JOINING", "SessionJoining"},
		{"DSGD_SESSION_STARTED", "SessionStarted"},
		{"DSGD_SESSION_TORN", "SessionTorn"},
		{"DSGD_SHARD_SEQUENTIAL", "Sequential"},
		{"DSGD_SUM", "Sum"},
		{"DSGD_UINT64", "Uint64"},
		{"DSGD_UINT8", "Uint8"},
		{"DSGD_UNTRAINED", "Untrained"},
		{"dsgd_abort", "Session.Abort"},
		{"dsgd_allgather", "AllGather"},
		{"dsgd_alloc", "Alloc"},
		{"dsgd_allreduce", "AllReduce"},
		{"dsgd_barrier", "Session.Barrier"},
		{"dsgd_bind", "Bind"},
		{"dsgd_bind_dlpack", "Replica.BindDLPack"},
		{"dsgd_broadcast", "Broadcast"},
		{"dsgd_capability", "Capability"},
		{"dsgd_checkpoint_load", "Session.LoadCheckpoint"},
		{"dsgd_checkpoint_save", "Session.SaveCheckpoint"},
		{"dsgd_close", "Session.Close"},
		{"dsgd_config", "Config"},
		{"dsgd_config_key", "ConfigKey"},
		{"dsgd_config_key_at", "ConfigKeys"},
		{"dsgd_config_key_count", "ConfigKeys"},
		{"dsgd_config_key_init", "ConfigKeys"},
		{"dsgd_config_load", "Config.Load"},
		{"dsgd_config_log_hook", "Config.SetLog"},
		{"dsgd_config_new", "NewConfig"},
		{"dsgd_config_set", "Config.Set"},
		{"dsgd_config_value", "Config.Get"},
		{"dsgd_digest", "Session.Digest"},
		{"dsgd_dtype", "DType"},
		{"dsgd_dtype_size", "DType.Size"},
		{"dsgd_error", "Error"},
		{"dsgd_error_code", "Error.Status"},
		{"dsgd_error_host", "Error.Host"},
		{"dsgd_error_message", "Error.Message"},
		{"dsgd_error_operation", "Error.Operation"},
		{"dsgd_error_parameter", "Error.Parameter"},
		{"dsgd_error_rank", "Error.Rank"},
		{"dsgd_export_dlpack", "Replica.ExportDLPack"},
		{"dsgd_fail", "Session.Fail"},
		{"dsgd_finalize", "Session.Close"},
		{"dsgd_gradient_absent", "Replica.GradientAbsent"},
		{"dsgd_gradient_ready", "Replica.GradientReady"},
		{"dsgd_gradients_ready", "Replica.GradientsReady"},
		{"dsgd_group", "Session"},
		{"dsgd_head", "Head"},
		{"dsgd_head_address", "Head.Address"},
		{"dsgd_head_free", "Head.Close"},
		{"dsgd_head_start", "StartHead"},
		{"dsgd_head_wait", "Head.Wait"},
		{"dsgd_init", "Init"},
		{"dsgd_init_begin", "InitContext"},
		{"dsgd_learning_rate_set", "Session.SetLearningRate"},
		{"dsgd_local_rank", "Session.LocalRank"},
		{"dsgd_local_size", "Session.LocalSize"},
		{"dsgd_log_fd", "Config.SetLog"},
		{"dsgd_log_level", "LogLevel"},
		{"dsgd_log_poll", "Config.SetLog"},
		{"dsgd_log_record", "LogRecord"},
		{"dsgd_log_record_level", "LogRecord.Level"},
		{"dsgd_log_record_message", "LogRecord.Message"},
		{"dsgd_log_record_rank", "LogRecord.Rank"},
		{"dsgd_log_record_session", "LogRecord.Session"},
		{"dsgd_log_record_time_ns", "LogRecord.Time"},
		{"dsgd_loss_scale", "Session.LossScale"},
		{"dsgd_memory", "Buffers"},
		{"dsgd_memory_get", "Alloc"},
		{"dsgd_memory_gradient", "Buffers.Gradient"},
		{"dsgd_memory_nbytes", "Buffers.Value"},
		{"dsgd_memory_value", "Buffers.Value"},
		{"dsgd_metrics", "Session.Metrics"},
		{"dsgd_object", "[]byte"},
		{"dsgd_object_data", "Session.GetObject"},
		{"dsgd_object_delete", "Session.DeleteObject"},
		{"dsgd_object_dtype", "GetArray"},
		{"dsgd_object_get", "Session.GetObject"},
		{"dsgd_object_nbytes", "Session.GetObject"},
		{"dsgd_object_ndim", "GetArray"},
		{"dsgd_object_put", "Session.PutObject"},
		{"dsgd_object_shape", "GetArray"},
		{"dsgd_op", "Op"},
		{"dsgd_op_abort", "Session.Abort"},
		{"dsgd_op_id", "Op.ID"},
		{"dsgd_op_object", "Session.GetObject"},
		{"dsgd_op_options", "Session.Channel"},
		{"dsgd_op_options_init", "Session.Channel"},
		{"dsgd_op_step_result", "Op.StepResult"},
		{"dsgd_op_test", "Op.Err"},
		{"dsgd_op_wait", "Op.Wait"},
		{"dsgd_optimizer_set", "Session.SetOptimizer"},
		{"dsgd_parameter", "Parameter"},
		{"dsgd_parameter_add", "Session.AddParameter"},
		{"dsgd_parameter_flag", "ParameterFlag"},
		{"dsgd_parameter_name", "Parameter.Name"},
		{"dsgd_parameter_set", "Parameter.Set"},
		{"dsgd_queue_fd", "Op.Done"},
		{"dsgd_queue_poll", "Op.Done"},
		{"dsgd_rank", "Session.Rank"},
		{"dsgd_reduce_scatter", "ReduceScatter"},
		{"dsgd_reduction", "Reduction"},
		{"dsgd_replica", "Replica"},
		{"dsgd_replica_add", "Session.AddReplica"},
		{"dsgd_replica_device", "Replica.Device"},
		{"dsgd_replica_weight", "Replica.SetWeight"},
		{"dsgd_session", "Session"},
		{"dsgd_session_info", "SessionInfo"},
		{"dsgd_session_info_init", "SessionInfo"},
		{"dsgd_session_info_read", "Session.Info"},
		{"dsgd_session_state", "SessionState"},
		{"dsgd_shard", "Shard"},
		{"dsgd_shard_current_epoch", "Shard.Epoch"},
		{"dsgd_shard_epoch", "Shard.SetEpoch"},
		{"dsgd_shard_flag", "ShardFlag"},
		{"dsgd_shard_new", "Session.NewShard"},
		{"dsgd_shard_next", "Shard.Next"},
		{"dsgd_shard_position", "Shard.Position"},
		{"dsgd_shard_seek", "Shard.Seek"},
		{"dsgd_shard_size", "Shard.Size"},
		{"dsgd_size", "Session.Size"},
		{"dsgd_start", "Session.Start"},
		{"dsgd_status", "Status"},
		{"dsgd_status_name", "Status.String"},
		{"dsgd_step", "Session.Step"},
		{"dsgd_step_begin", "Session.StepBegin"},
		{"dsgd_step_flush", "Session.StepFlush"},
		{"dsgd_step_result", "StepResult"},
		{"dsgd_step_result_init", "StepResult"},
		{"dsgd_stop_request", "Session.RequestStop"},
		{"dsgd_strategy_set", "Session.SetStrategy"},
		{"dsgd_stream_wait", "Replica.StreamWait"},
		{"dsgd_trace", "Session.Trace"},
		{"dsgd_version", "VersionNumber"},
		{"dsgd_version_string", "Version"},
		{"dsgd_view", "Session.View"},
	} {
		cNames[pair[0]] = pair[1]
	}
}

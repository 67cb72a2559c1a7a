/* Go: package dsgd.io/dsgd/internal/raw, private to the hand-written layer in this folder.
 *
 * Handles and the addresses of buffers are uintptr: they are C memory, or Go memory that the hand layer has pinned. What C
 * only reads or writes during the call (shapes, element counts, indices) are slices. Every fallible function returns its status
 * and fills *error within the same C call, so no state of a thread is involved when the goroutine moves between threads. */
%module raw

%insert(cgo_comment) %{
#cgo pkg-config: dsgd
#cgo CFLAGS: -fno-strict-aliasing
%}

%{
#include <dsgd/dsgd.h>

#include <stddef.h>

/* StepResult in Go has this layout; a newer library's struct may go on behind it. Go's int and C's size_t and pointers are 64 bits wide here. */
_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "the Go binding is for 64-bit systems");
_Static_assert(sizeof(dsgd_step_result) >= 72 && offsetof(dsgd_step_result, step) == 8 &&
                   offsetof(dsgd_step_result, view) == 16 && offsetof(dsgd_step_result, size) == 24 &&
                   offsetof(dsgd_step_result, applied) == 28 && offsetof(dsgd_step_result, all_done) == 32 &&
                   offsetof(dsgd_step_result, stop) == 36 && offsetof(dsgd_step_result, weight) == 40 &&
                   offsetof(dsgd_step_result, gradient_norm) == 48 && offsetof(dsgd_step_result, nonfinite) == 56 &&
                   offsetof(dsgd_step_result, nonfinite_rank) == 64 && offsetof(dsgd_step_result, skipped) == 68,
               "dsgd_step_result changed: change StepResult in dsgd_go.i with it");
_Static_assert(sizeof(dsgd_session_info) >= 56 && offsetof(dsgd_session_info, id) == 8 &&
                   offsetof(dsgd_session_info, view) == 16 && offsetof(dsgd_session_info, steps) == 24 &&
                   offsetof(dsgd_session_info, state) == 32 && offsetof(dsgd_session_info, rank) == 36 &&
                   offsetof(dsgd_session_info, size) == 40 && offsetof(dsgd_session_info, local_rank) == 44 &&
                   offsetof(dsgd_session_info, local_size) == 48 && offsetof(dsgd_session_info, replicas) == 52,
               "dsgd_session_info changed: change SessionInfo in dsgd_go.i with it");
%}

%insert(go_header) %{
// StepResult is dsgd_step_result, field by field.
type StepResult struct {
	StructSize    uint64
	Step          int64
	View          int64
	Size          int32
	Applied       int32
	AllDone       int32
	Stop          int32
	Weight        float64
	GradientNorm  float64
	Nonfinite     int64
	NonfiniteRank int32
	Skipped       int32
}

// NewStepResult has defaults and its size filled in, as dsgd_step_result_init would.
func NewStepResult() StepResult { return StepResult{StructSize: uint64(unsafe.Sizeof(StepResult{})), NonfiniteRank: -1} }

// SessionInfo is dsgd_session_info, field by field.
type SessionInfo struct {
	StructSize uint64
	ID         uint64
	View       int64
	Steps      int64
	State      int32
	Rank       int32
	Size       int32
	LocalRank  int32
	LocalSize  int32
	Replicas   int32
}

// NewSessionInfo has its size filled in; dsgd_session_info_read writes all else.
func NewSessionInfo() SessionInfo { return SessionInfo{StructSize: uint64(unsafe.Sizeof(SessionInfo{}))} }
%}
%insert(go_header) %{
// OpOptions are the options of an operation; its C struct is made from them.
type OpOptions struct {
	UserData  uintptr // must not be the address of Go memory
	TimeoutMS int32   // -1: step_timeout
	Channel   uint32
	Stream    uintptr // of a GPU
}
%}
%{
typedef struct go_op_options {
  uintptr_t user_data;
  int32_t timeout_ms;
  uint32_t channel;
  uintptr_t stream;
} go_op_options;
%}
%typemap(gotype) const dsgd_op_options *options "*OpOptions"
%typemap(in) const dsgd_op_options *options (dsgd_op_options options) {
  const go_op_options *given = (const go_op_options *)$input;
  $1 = NULL;
  if (given != NULL) {
    dsgd_op_options_init(&options, sizeof options);
    options.user_data = (void *)given->user_data;
    options.timeout_ms = given->timeout_ms;
    options.channel = given->channel;
    options.stream = (void *)given->stream;
    $1 = &options;
  }
}
%apply const dsgd_op_options *options { const dsgd_op_options *op_options };
%typemap(gotype) void *dsgd_op_user_data "uintptr"
%ignore dsgd_step_result; /* read in place, without a C call per field */
%ignore dsgd_session_info;

%typemap(gotype) SWIGTYPE * "uintptr"
%typemap(gotype) SWIGTYPE ** "*uintptr"
%typemap(gotype) void ** "*unsafe.Pointer"
%typemap(gotype) struct DLManagedTensorVersioned ** "*unsafe.Pointer"
%typemap(gotype) dsgd_step_result *result "*StepResult"
%typemap(gotype) dsgd_session_info *info "*SessionInfo"
%typemap(gotype) int32_t *done "*int32"
%typemap(gotype) size_t *count "*uint64"
%typemap(gotype) uint64_t *digest "*uint64"

/* An empty string is NULL where NULL means "the default" or "none". */
%typemap(in) const char *device, const char *options, const char *reason, const char *folder {
  $1 = NULL;
  if ($input.n > 0) {
    $1 = ($1_ltype)malloc($input.n + 1);
    if ($1 != NULL) {
      memcpy($1, $input.p, $input.n);
      $1[$input.n] = '\0';
    }
  }
}
%typemap(freearg) const char *device, const char *options, const char *reason, const char *folder "free($1);"

%typemap(gotype) const size_t *element_counts "[]uint64"
%typemap(in) const size_t *element_counts "$1 = $input.len > 0 ? (size_t *)$input.array : NULL;"
%typemap(gotype) (const int64_t *shape, size_t ndim) "[]int64"
%typemap(in) (const int64_t *shape, size_t ndim) "$1 = (int64_t *)$input.array; $2 = (size_t)$input.len;"
%typemap(gotype) (int64_t *indices, size_t max) "[]int64"
%typemap(in) (int64_t *indices, size_t max) "$1 = (int64_t *)$input.array; $2 = (size_t)$input.len;"
%typemap(gotype) (dsgd_parameter *const *parameters, size_t count) "[]uintptr"
%typemap(in) (dsgd_parameter *const *parameters, size_t count)
    "$1 = (dsgd_parameter **)$input.array; $2 = (size_t)$input.len;"
%typemap(gotype) (dsgd_op **ops, size_t max) "[]uintptr"
%typemap(in) (dsgd_op **ops, size_t max) "$1 = (dsgd_op **)$input.array; $2 = (size_t)$input.len;"

/* A text that is the caller's, as an address. */
%typemap(gotype) char **text "*uintptr"
%typemap(gotype) char *text "uintptr"
%typemap(in) char *text "$1 = (char *)$input;"
%typemap(freearg) char *text ""
%inline %{
static const char *dsgd_text_string(char *text) { return text; }
%}

/* A NULL string and an empty one are the same in Go; only here does the difference matter. */
%inline %{
static int32_t dsgd_config_has(const dsgd_config *config, const char *key) {
  return dsgd_config_value(config, key) != NULL;
}
%}

%include "../dsgd.i"

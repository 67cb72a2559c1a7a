/* The private module dsgd._raw: dsgd.h as plain functions. A failing call raises the exception of its code; handles are
 * bare pointers that the hand-written layer frees; buffers are objects with the buffer protocol or tensors taken over
 * DLPack. Only the extension module is used: the Python file that SWIG writes beside it is not. */
%module(package="dsgd", threads="1") raw  /* SWIG puts an underscore before the name of the extension module */

/* Python.h does not bring these in the limited API, and the code of SWIG before 4.5 needs them. */
%begin %{
#include <errno.h>
#include <stdlib.h>
%}

%{
#include <dsgd/dsgd.h>

#include "dlpack_capsules.h"
#include "errors.h"
#include "memory_region.h"
#include "sequences.h"
%}

/* The GIL is given up for calls that block or run long, and for those alone: destructors must not, since they may run
 * within any other code. */
%nothread;
%thread dsgd_init_begin;
%thread dsgd_close;
%thread dsgd_alloc;
%thread dsgd_op_wait;
%thread dsgd_log_poll;
%thread dsgd_object_put;
%thread dsgd_checkpoint_save;
%thread dsgd_shard_epoch;
%thread dsgd_shard_next;
%thread dsgd_shard_seek;
/* These may open a GPU. */
%thread dsgd_allreduce;
%thread dsgd_broadcast;
%thread dsgd_allgather;
%thread dsgd_reduce_scatter;
%thread dsgd_digest;
%thread dsgd_head_start;
%thread dsgd_head_wait;

/* Functions that the Python layer does not call: blocking forms of calls that it begins and waits for in slices, so
 * that Ctrl-C works; raw addresses; and the structs, which it gets as tuples. */
%ignore dsgd_init;
%ignore dsgd_step;
%ignore dsgd_finalize;
%ignore dsgd_step_result;
%ignore dsgd_config_key;
%ignore dsgd_session_info;
%ignore dsgd_log_fd;
%rename("$ignore", regexmatch$name="^dsgd_(memory|object)_(value|gradient|nbytes|data|dtype|ndim|shape)$") "";

/* ---- Results ---- */

/* A status is never a result: success is None, or what the output arguments give. */
%typemap(out) int32_t "$result = SWIG_Py_Void();"
%define DSGD_RETURNS(type, function, object)
%typemap(out) type function {
  if ($1 < 0) {
    dsgd_py_raise_status((int32_t)$1, #function);
    SWIG_fail;
  }
  $result = object;
}
%enddef
%define DSGD_RETURNS_NUMBER(type, function)
DSGD_RETURNS(type, function, PyLong_FromLongLong($1))
%enddef
DSGD_RETURNS(int32_t, dsgd_capability, PyBool_FromLong($1))
DSGD_RETURNS_NUMBER(int32_t, dsgd_rank)
DSGD_RETURNS_NUMBER(int32_t, dsgd_size)
DSGD_RETURNS_NUMBER(int32_t, dsgd_local_rank)
DSGD_RETURNS_NUMBER(int32_t, dsgd_local_size)
DSGD_RETURNS_NUMBER(int32_t, dsgd_queue_fd)
DSGD_RETURNS_NUMBER(int32_t, dsgd_log_record_level)
%typemap(out) int32_t dsgd_log_record_rank "$result = PyLong_FromLong($1);" /* -1 is no error */
DSGD_RETURNS_NUMBER(int64_t, dsgd_view)
DSGD_RETURNS(double, dsgd_loss_scale, PyFloat_FromDouble($1))

%typemap(in, numinputs=0) dsgd_error **error (dsgd_error *made = NULL) "$1 = &made;"
%typemap(argout) dsgd_error **error {
  if (result < 0) {
    Py_CLEAR($result);
    dsgd_py_raise(result, *$1);
    SWIG_fail;
  }
}

/* The output is written on success only; an error's typemap, always the last, clears what stands here otherwise. */
%define DSGD_SET_OUTPUT(expression)
{
  if (result >= 0) {
    Py_CLEAR($result);
    $result = expression;
    if ($result == NULL) SWIG_fail;
  }
}
%enddef

%define DSGD_OUTPUT_HANDLE(type, argument)
%typemap(in, numinputs=0) type **argument (type *made = NULL) "$1 = &made;"
%typemap(argout) type **argument DSGD_SET_OUTPUT(SWIG_NewPointerObj(*$1, $*1_descriptor, 0))
%enddef
%include "../../dsgd_handles.i"
DSGD_EACH_OUTPUT_HANDLE(DSGD_OUTPUT_HANDLE)

/* A session that is joining, and the op. */
%typemap(in, numinputs=0) (dsgd_session **session, dsgd_op **op) (dsgd_session *session = NULL, dsgd_op *op = NULL) {
  $1 = &session;
  $2 = &op;
}
%typemap(argout) (dsgd_session **session, dsgd_op **op)
    DSGD_SET_OUTPUT(Py_BuildValue("NN", SWIG_NewPointerObj(*$1, $*1_descriptor, 0), SWIG_NewPointerObj(*$2, $*2_descriptor, 0)))
/* dsgd_object_get never blocks here: dsgd_op_object gives the object. */
%typemap(in, numinputs=0) (dsgd_object **object, dsgd_op **op) (dsgd_op *op = NULL) {
  $1 = NULL;
  $2 = &op;
}
%typemap(argout) (dsgd_object **object, dsgd_op **op) DSGD_SET_OUTPUT(SWIG_NewPointerObj(*$2, $*2_descriptor, 0))

%typemap(in, numinputs=0) char **text (char *made = NULL) "$1 = &made;"
%typemap(argout) char **text DSGD_SET_OUTPUT(PyUnicode_DecodeUTF8(*$1, (Py_ssize_t)strlen(*$1), "replace"))
%typemap(freearg) char **text "dsgd_text_free(*$1);"
%ignore dsgd_text_free;

%typemap(in, numinputs=0) uint64_t *digest (uint64_t made = 0) "$1 = &made;"
%typemap(argout) uint64_t *digest DSGD_SET_OUTPUT(PyLong_FromUnsignedLongLong(*$1))
/* An operation that ended with an error raises it instead. */
%typemap(in, numinputs=0) int32_t *done (int32_t made = 0) "$1 = &made;"
%typemap(argout) int32_t *done DSGD_SET_OUTPUT(PyBool_FromLong(*$1))

%define DSGD_OUTPUT_STRUCT(type, argument, make)
%typemap(in, numinputs=0) type *argument (type made) {
  type ## _init(&made, sizeof made);
  $1 = &made;
}
%typemap(argout) type *argument DSGD_SET_OUTPUT(make($1))
%enddef
DSGD_OUTPUT_STRUCT(dsgd_step_result, result, dsgd_py_step_result)
DSGD_OUTPUT_STRUCT(dsgd_config_key, key, dsgd_py_config_key)
DSGD_OUTPUT_STRUCT(dsgd_session_info, info, dsgd_py_session_info)

/* The two buffers are then reached through dsgd_memory_get. */
%typemap(in, numinputs=0) (void **value, void **gradient) (void *value, void *gradient) {
  $1 = &value;
  $2 = &gradient;
}
%typemap(in, numinputs=0) (struct DLManagedTensorVersioned **value, struct DLManagedTensorVersioned **gradient)
    (struct DLManagedTensorVersioned *value = NULL, struct DLManagedTensorVersioned *gradient = NULL) {
  $1 = &value;
  $2 = &gradient;
}
%typemap(argout) (struct DLManagedTensorVersioned **value, struct DLManagedTensorVersioned **gradient)
    DSGD_SET_OUTPUT(dsgd_py_capsule_pair(*$1, *$2))

/* Ids of the operations that have ended, up to 64 at a time. Called with timeout 0. */
%typemap(in) (dsgd_op **ops, size_t max, int32_t timeout_ms, size_t *count) (dsgd_op *ended[64], size_t number = 0) {
  long timeout = PyLong_AsLong($input);
  if (timeout == -1 && PyErr_Occurred()) SWIG_fail;
  $1 = ended;
  $2 = 64;
  $3 = (int32_t)timeout;
  $4 = &number;
}
%typemap(argout) (dsgd_op **ops, size_t max, int32_t timeout_ms, size_t *count)
    DSGD_SET_OUTPUT(dsgd_py_op_ids($1, *$4))

/* ---- Arguments ---- */

%typemap(in) const char * {
  if (!dsgd_py_string($input, (const char **)&$1)) SWIG_fail;
}
%typemap(freearg) const char * ""
/* Whatever counts as a number in Python, NumPy's scalars too. */
%define DSGD_SIGNED(type, least, most)
%typemap(in) type (long long number) {
  if (!dsgd_py_signed($input, "$1_name", least, most, &number)) SWIG_fail;
  $1 = (type)number;
}
%enddef
DSGD_SIGNED(int32_t, INT32_MIN, INT32_MAX)
DSGD_SIGNED(int64_t, INT64_MIN, INT64_MAX)
%define DSGD_UNSIGNED(type, most)
%typemap(in) type (unsigned long long number) {
  if (!dsgd_py_unsigned($input, "$1_name", most, &number)) SWIG_fail;
  $1 = (type)number;
}
%enddef
DSGD_UNSIGNED(uint64_t, UINT64_MAX)
DSGD_UNSIGNED(size_t, SIZE_MAX)
%typemap(in) double {
  if (!dsgd_py_double($input, &$1)) SWIG_fail;
}
%typemap(in, numinputs=0) dsgd_group *group "$1 = NULL;"
%typemap(in) void *stream {
  $1 = NULL;
  if ($input != Py_None) {
    $1 = PyLong_AsVoidPtr($input);
    if (PyErr_Occurred()) SWIG_fail;
  }
}

/* A buffer is held from here to freearg, thus over the call even where that gives up the GIL. For what goes on after the
 * call the layer holds it longer. None is a NULL buffer. */
%define DSGD_BUFFER(data_declaration, size_declaration, is_written)
%typemap(in) (data_declaration, size_declaration) (dsgd_py_buffer buffer = {0}) {
  if (!dsgd_py_buffer_get($input, is_written, &buffer)) SWIG_fail;
  $1 = buffer.data;
  $2 = buffer.nbytes;
}
%typemap(freearg) (data_declaration, size_declaration) "dsgd_py_buffer_release(&buffer$argnum);"
%enddef
DSGD_BUFFER(void *data, size_t nbytes, 1)
DSGD_BUFFER(const void *data, size_t nbytes, 0)
DSGD_BUFFER(void *receive, size_t nbytes, 1)
DSGD_BUFFER(const void *send, size_t send_nbytes, 0)
DSGD_BUFFER(void *receive, size_t receive_nbytes, 1)
DSGD_BUFFER(void *value, size_t value_nbytes, 1)
DSGD_BUFFER(void *gradient, size_t gradient_nbytes, 0)

/* dsgd_allreduce: as many bytes as `receive` has; the layer checks. */
%typemap(in) const void *send (dsgd_py_buffer buffer = {0}) {
  if (!dsgd_py_buffer_get($input, 0, &buffer)) SWIG_fail;
  $1 = buffer.data;
}
%typemap(freearg) const void *send "dsgd_py_buffer_release(&buffer$argnum);"

%typemap(in) (int64_t *indices, size_t max, size_t *count) (dsgd_py_buffer buffer = {0}, size_t number = 0) {
  if (!dsgd_py_buffer_get($input, 1, &buffer)) SWIG_fail;
  $1 = (int64_t *)buffer.data;
  $2 = buffer.nbytes / sizeof(int64_t);
  $3 = &number;
}
%typemap(argout) (int64_t *indices, size_t max, size_t *count) DSGD_SET_OUTPUT(PyLong_FromSize_t(*$3))
%typemap(freearg) (int64_t *indices, size_t max, size_t *count) "dsgd_py_buffer_release(&buffer$argnum);"

/* Options of an operation: (user data, timeout_ms, channel, stream), or None for the defaults. */
%typemap(in) const dsgd_op_options *options (dsgd_op_options options) {
  $1 = NULL;
  if ($input != Py_None) {
    if (!dsgd_py_op_options($input, &options)) SWIG_fail;
    $1 = &options;
  }
}

%apply const dsgd_op_options *options { const dsgd_op_options *op_options };

%typemap(in) (const int64_t *shape, size_t ndim) (int64_t *numbers = NULL) {
  if (!dsgd_py_int64s($input, "$1_name", &numbers, &$2)) SWIG_fail;
  $1 = numbers;
}
%typemap(freearg) (const int64_t *shape, size_t ndim) "free(numbers$argnum);"
%typemap(in) const size_t *element_counts (size_t *numbers = NULL) {
  if (!dsgd_py_sizes($input, "$1_name", &numbers)) SWIG_fail;
  $1 = numbers;
}
%typemap(freearg) const size_t *element_counts "free(numbers$argnum);"

%typemap(in) (dsgd_parameter *const *parameters, size_t count) (dsgd_parameter **made = NULL) {
  const Py_ssize_t length = PySequence_Size($input);
  if (length < 0) SWIG_fail;
  made = (dsgd_parameter **)calloc((size_t)length + 1, sizeof *made);
  if (made == NULL) {
    PyErr_NoMemory();
    SWIG_fail;
  }
  for (Py_ssize_t i = 0; i < length; ++i) {
    PyObject *item = PySequence_GetItem($input, i);
    const int converted = item != NULL ? SWIG_ConvertPtr(item, (void **)&made[i], $descriptor(dsgd_parameter *), 0) : -1;
    Py_XDECREF(item);
    if (converted < 0) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "expected parameters");
      SWIG_fail;
    }
  }
  $1 = (dsgd_parameter **)made;
  $2 = (size_t)length;
}
%typemap(freearg) (dsgd_parameter *const *parameters, size_t count) "free(made$argnum);"

/* dsgd_bind_dlpack gets a tensor that describes the buffer and refers to its owner, so that no deleter needs the GIL on a
 * thread of dsgd's. On failure it stays ours. */
%typemap(in) struct DLManagedTensorVersioned *value {
  if (!dsgd_py_tensor_describe($input, &$1)) SWIG_fail;
}
%typemap(in) struct DLManagedTensorVersioned *gradient = struct DLManagedTensorVersioned *value;
%typemap(argout) struct DLManagedTensorVersioned *value "if (result < 0) dsgd_py_tensor_drop($1);"
%typemap(argout) struct DLManagedTensorVersioned *gradient = struct DLManagedTensorVersioned *value;

%include "../../dsgd.i"

/* ---- Beyond dsgd.h: memory that dsgd owns, seen as Python objects ---- */

PyObject *dsgd_py_memory_region(dsgd_memory *memory, int gradient, const char *format, PyObject *shape);
PyObject *dsgd_py_object_region(dsgd_object *object);
PyObject *dsgd_py_tensor_import(PyObject *capsule);
PyObject *dsgd_py_tensor_info(PyObject *tensor);
PyObject *dsgd_py_tensor_legacy(PyObject *capsule);
void dsgd_py_tensors_release(void);

/* The raw Java module. Everything generated here is package-private in io.dsgd: no user can reach a
 * pointer. Handles are `long`; a failure becomes a DsgdException inside the very call that failed, so no
 * thread-local state is read later. */
%module(jniclassname="RawJNI") Raw

%{
#include <dsgd/dsgd.h>

#include "jni_support.h"
%}

%pragma(java) moduleclassmodifiers="final class"
%pragma(java) jniclassclassmodifiers="final class"
%pragma(java) jniclasscode=%{
  static {
    NativeLibrary.load();
  }
%}

/* Constants are compile-time ints in classes of their own, never enums: a newer library may return codes
 * that are not known here. */
%include "enumtypeunsafe.swg"
%javaconst(1);
%typemap(javaclassmodifiers) enum SWIGTYPE "final class"
%ignore DSGD_VERSION_MAJOR;
%ignore DSGD_VERSION_MINOR;
%ignore DSGD_VERSION_PATCH;

/* The structs are read in one call, by the typemaps below. */
%ignore dsgd_session_info;
%ignore dsgd_step_result;
%ignore dsgd_config_key;

/* The Java type of an argument. It is passed on as it is, and nothing follows the call, unless typemaps below say otherwise. */
%define DSGD_JAVA_TYPE(ARGUMENTS, JNI, JAVA)
%typemap(jni) ARGUMENTS "JNI"
%typemap(jtype) ARGUMENTS "JAVA"
%typemap(jstype) ARGUMENTS "JAVA"
%typemap(javain) ARGUMENTS "$javainput"
%typemap(argout) ARGUMENTS ""
%typemap(freearg) ARGUMENTS ""
%enddef

/* ---- Handles and addresses: long ----------------------------------------------------------------------- */

%typemap(jni) SWIGTYPE *, void * "jlong"
%typemap(jtype) SWIGTYPE *, void * "long"
%typemap(jstype) SWIGTYPE *, void * "long"
%typemap(javain) SWIGTYPE *, void * "$javainput"
%typemap(javaout) SWIGTYPE *, void * { return $jnicall; }
%typemap(in) SWIGTYPE *, void * %{ $1 = ($1_ltype)(intptr_t)$input; %}
%typemap(out) SWIGTYPE *, void * %{ $result = (jlong)(intptr_t)$1; %}

/* Handles given out: element 0 of a long[]. NULL is passed on: `op` NULL means that the call blocks. */
DSGD_JAVA_TYPE(SWIGTYPE **, jlongArray, long[])
%typemap(in) SWIGTYPE ** ($*1_ltype handle = NULL) %{ $1 = $input != NULL ? &handle : NULL; %}
%typemap(argout) SWIGTYPE ** {
  if (result == DSGD_OK && $input != NULL) {
    jlong pointer = (jlong)(intptr_t)handle$argnum;
    (*jenv)->SetLongArrayRegion(jenv, $input, 0, 1, &pointer);
  }
}

/* ---- Errors -------------------------------------------------------------------------------------------- */

/* DSGD_ERR_WAIT_TIMEOUT is returned, since running out of patience is no failure; all others are thrown. */
%typemap(in, numinputs=0) struct dsgd_error **error (dsgd_error *problem = NULL) "$1 = &problem;"
%typemap(argout) struct dsgd_error **error {
  if (result == DSGD_ERR_WAIT_TIMEOUT) {
    dsgd_error_free(problem$argnum);
  } else if (result < 0) {
    jni_throw(jenv, result, problem$argnum);
  }
}
%typemap(freearg) struct dsgd_error **error ""

/* ---- Strings: real UTF-8, not the JVM's modified one --------------------------------------------------- */

%typemap(in) const char * %{
  if (!jni_utf8(jenv, $input, &$1)) return $null;
%}
%typemap(freearg) const char * %{ free($1); %}
%typemap(out) const char * %{ $result = jni_string(jenv, $1); %}
%typemap(argout) const char * ""

/* A text that is the caller's: element 0 of a String[]. */
DSGD_JAVA_TYPE(char **text, jobjectArray, String[])
%typemap(in) char **text (char *made = NULL) "$1 = &made;"
%typemap(argout) char **text {
  if (result == DSGD_OK) (*jenv)->SetObjectArrayElement(jenv, $input, 0, jni_string(jenv, *$1));
}
%typemap(freearg) char **text "dsgd_text_free(*$1);"
%ignore dsgd_text_free;

/* ---- Memory: address and size from a NativeArray -------------------------------------------------------- */

%define DSGD_BUFFER(ARGUMENTS)
DSGD_JAVA_TYPE(ARGUMENTS, jobject, NativeArray)
%typemap(in) ARGUMENTS %{
  if (!jni_array(jenv, $input, (void **)&$1, &$2)) return $null;
%}
%enddef
DSGD_BUFFER((void *data, size_t nbytes))
DSGD_BUFFER((const void *data, size_t nbytes))
DSGD_BUFFER((void *receive, size_t nbytes))
DSGD_BUFFER((void *value, size_t value_nbytes))
DSGD_BUFFER((void *gradient, size_t gradient_nbytes))
DSGD_BUFFER((const void *send, size_t send_nbytes))
DSGD_BUFFER((void *receive, size_t receive_nbytes))

/* dsgd_allreduce: as many bytes as `receive` has; the layer checks. */
DSGD_JAVA_TYPE(const void *send, jobject, NativeArray)
%typemap(in) const void *send (size_t nbytes) %{
  if (!jni_array(jenv, $input, (void **)&$1, &nbytes)) return $null;
%}

/* dsgd_alloc: the addresses are read through dsgd_memory, which keeps them mapped. */
%typemap(in, numinputs=0) void **value (void *address = NULL) "$1 = &address;"
%typemap(in, numinputs=0) void **gradient (void *address = NULL) "$1 = &address;"
%typemap(argout) void **value, void **gradient ""
%typemap(freearg) void **value, void **gradient ""

/* ---- Arrays -------------------------------------------------------------------------------------------- */

/* A long[] that C reads. */
%define DSGD_INPUT_LONGS(ARGUMENTS)
DSGD_JAVA_TYPE(ARGUMENTS, jlongArray, long[])
%typemap(in) ARGUMENTS %{
  if (!jni_longs(jenv, $input, (jlong **)&$1, &$2)) return $null;
%}
%typemap(freearg) ARGUMENTS %{ free((void *)$1); %}
%enddef
DSGD_INPUT_LONGS((const int64_t *shape, size_t ndim))
DSGD_INPUT_LONGS((dsgd_parameter *const *parameters, size_t count))
DSGD_INPUT_LONGS(const size_t *element_counts)
/* C refuses a count that exceeds the buffer, and reads none after it. So the array may be too short. */
%typemap(in) const size_t *element_counts (size_t length) %{
  if (!jni_longs(jenv, $input, (jlong **)&$1, &length)) return $null;
  if ($1 != NULL) ((size_t *)$1)[length] = SIZE_MAX;
%}

/* A long[] that C fills. COUNT is the function's argument that says how much of it. */
%define DSGD_OUTPUT_LONGS(ARGUMENTS, COUNT)
DSGD_JAVA_TYPE(ARGUMENTS, jlongArray, long[])
%typemap(in) ARGUMENTS %{
  if (!jni_longs_out(jenv, $input, (jlong **)&$1, &$2)) return $null;
%}
%typemap(argout) ARGUMENTS %{
  if (result == DSGD_OK && *COUNT > 0) (*jenv)->SetLongArrayRegion(jenv, $input, 0, (jsize)*COUNT, (const jlong *)$1);
%}
%typemap(freearg) ARGUMENTS %{ free($1); %}
%enddef
DSGD_OUTPUT_LONGS((int64_t *indices, size_t max), arg4)
DSGD_OUTPUT_LONGS((dsgd_op **ops, size_t max), arg5)

/* One number given out, as element 0 of an array. */
%define DSGD_OUTPUT_NUMBER(TYPE, JNI, JAVA, CTYPE, SET)
DSGD_JAVA_TYPE(TYPE, JNI, JAVA[])
%typemap(in) TYPE (CTYPE number = 0) "$1 = &number;"
%typemap(argout) TYPE {
  if (result == DSGD_OK) SET(jenv, $input, number$argnum);
}
%enddef
DSGD_OUTPUT_NUMBER(size_t *count, jlongArray, long, size_t, jni_set_long)
DSGD_OUTPUT_NUMBER(uint64_t *digest, jlongArray, long, uint64_t, jni_set_long)
DSGD_OUTPUT_NUMBER(int32_t *done, jintArray, int, int32_t, jni_set_int)

/* Options of an operation: user data, timeout_ms, channel, stream; or null for the defaults. */
DSGD_JAVA_TYPE(const dsgd_op_options *options, jlongArray, long[])
%typemap(in) const dsgd_op_options *options (dsgd_op_options options) %{
  if (!jni_op_options(jenv, $input, &options)) return $null;
  $1 = $input != NULL ? &options : NULL;
%}
%apply const dsgd_op_options *options { const dsgd_op_options *op_options };

/* ---- Structs ------------------------------------------------------------------------------------------- */

%define DSGD_OUTPUT_STRUCT(STRUCT, NAME, JAVA, SET)
DSGD_JAVA_TYPE(struct STRUCT *NAME, jobjectArray, JAVA[])
%typemap(in) struct STRUCT *NAME (STRUCT values) {
  STRUCT ## _init(&values, sizeof values);
  $1 = &values;
}
%typemap(argout) struct STRUCT *NAME {
  if (result == DSGD_OK) SET(jenv, $input, $1);
}
%enddef
DSGD_OUTPUT_STRUCT(dsgd_step_result, result, StepResult, jni_set_step_result)
DSGD_OUTPUT_STRUCT(dsgd_session_info, info, SessionInfo, jni_set_session_info)
DSGD_OUTPUT_STRUCT(dsgd_config_key, key, String, jni_set_config_key)

%include "../dsgd.i"

/* ---- What C alone can do for Java ---------------------------------------------------------------------- */

%typemap(in, numinputs=0) JNIEnv *jenv "$1 = jenv;"
%rename(buffer_over) jni_buffer_over;
%rename(buffer_address) jni_buffer_address;
%rename(dlpack_delete) jni_dlpack_delete;
%rename(dlpack_data) jni_dlpack_data;
/* Returns a direct buffer over C memory. The caller keeps that memory mapped. */
jobject jni_buffer_over(JNIEnv *jenv, void *address, size_t nbytes);
/* Of a direct buffer. */
void *jni_buffer_address(JNIEnv *jenv, jobject buffer);
/* Calls a tensor's deleter; the address of its first element. */
void jni_dlpack_delete(struct DLManagedTensorVersioned *tensor);
void *jni_dlpack_data(struct DLManagedTensorVersioned *tensor);

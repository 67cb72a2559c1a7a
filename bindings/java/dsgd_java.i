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
%ignore dsgd_session_info_init;
%ignore dsgd_step_result;
%ignore dsgd_step_result_init;
%ignore dsgd_config_key;
%ignore dsgd_config_key_init;

/* ---- Handles and addresses: long ----------------------------------------------------------------------- */

%typemap(jni) SWIGTYPE *, void * "jlong"
%typemap(jtype) SWIGTYPE *, void * "long"
%typemap(jstype) SWIGTYPE *, void * "long"
%typemap(javain) SWIGTYPE *, void * "$javainput"
%typemap(javaout) SWIGTYPE *, void * { return $jnicall; }
%typemap(in) SWIGTYPE *, void * %{ $1 = ($1_ltype)(intptr_t)$input; %}
%typemap(out) SWIGTYPE *, void * %{ $result = (jlong)(intptr_t)$1; %}

/* Handles given out: element 0 of a long[]. NULL is passed on: `op` NULL means that the call blocks. */
%typemap(jni) SWIGTYPE ** "jlongArray"
%typemap(jtype) SWIGTYPE ** "long[]"
%typemap(jstype) SWIGTYPE ** "long[]"
%typemap(javain) SWIGTYPE ** "$javainput"
%typemap(in) SWIGTYPE ** ($*1_ltype handle = NULL) %{ $1 = $input != NULL ? &handle : NULL; %}
%typemap(argout) SWIGTYPE ** {
  if (result == DSGD_OK && $input != NULL) {
    jlong pointer = (jlong)(intptr_t)handle$argnum;
    (*jenv)->SetLongArrayRegion(jenv, $input, 0, 1, &pointer);
  }
}
%typemap(freearg) SWIGTYPE ** ""

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
%ignore dsgd_error_code;
%ignore dsgd_error_rank;
%ignore dsgd_error_host;
%ignore dsgd_error_operation;
%ignore dsgd_error_parameter;
%ignore dsgd_error_message;
%ignore dsgd_error_free;

/* ---- Strings: real UTF-8, not the JVM's modified one --------------------------------------------------- */

%typemap(in) const char * %{
  if (!jni_utf8(jenv, $input, &$1)) return $null;
%}
%typemap(freearg) const char * %{ free($1); %}
%typemap(out) const char * %{ $result = jni_string(jenv, $1); %}
%typemap(argout) const char * ""

/* A text that is the caller's: element 0 of a String[]. */
%typemap(jni) char **text "jobjectArray"
%typemap(jtype) char **text "String[]"
%typemap(jstype) char **text "String[]"
%typemap(javain) char **text "$javainput"
%typemap(in) char **text (char *made = NULL) "$1 = &made;"
%typemap(argout) char **text {
  if (result == DSGD_OK) (*jenv)->SetObjectArrayElement(jenv, $input, 0, jni_string(jenv, *$1));
}
%typemap(freearg) char **text "dsgd_text_free(*$1);"
%ignore dsgd_text_free;

/* ---- Memory: address and size from a NativeArray -------------------------------------------------------- */

%define DSGD_BUFFER(ARGUMENTS)
%typemap(jni) ARGUMENTS "jobject"
%typemap(jtype) ARGUMENTS "NativeArray"
%typemap(jstype) ARGUMENTS "NativeArray"
%typemap(javain) ARGUMENTS "$javainput"
%typemap(in) ARGUMENTS %{
  if (!jni_array(jenv, $input, (void **)&$1, &$2)) return $null;
%}
%typemap(freearg) ARGUMENTS ""
%typemap(argout) ARGUMENTS ""
%enddef
DSGD_BUFFER((void *data, size_t nbytes))
DSGD_BUFFER((const void *data, size_t nbytes))
DSGD_BUFFER((void *receive, size_t nbytes))
DSGD_BUFFER((void *value, size_t value_nbytes))
DSGD_BUFFER((void *gradient, size_t gradient_nbytes))
DSGD_BUFFER((const void *send, size_t send_nbytes))
DSGD_BUFFER((void *receive, size_t receive_nbytes))

/* dsgd_allreduce: as many bytes as `receive` has; the layer checks. */
%typemap(jni) const void *send "jobject"
%typemap(jtype) const void *send "NativeArray"
%typemap(jstype) const void *send "NativeArray"
%typemap(javain) const void *send "$javainput"
%typemap(in) const void *send (size_t nbytes) %{
  if (!jni_array(jenv, $input, (void **)&$1, &nbytes)) return $null;
%}
%typemap(freearg) const void *send ""
%typemap(argout) const void *send ""

/* dsgd_alloc: the addresses are read through dsgd_memory, which keeps them mapped. */
%typemap(in, numinputs=0) void **value (void *address = NULL) "$1 = &address;"
%typemap(in, numinputs=0) void **gradient (void *address = NULL) "$1 = &address;"
%typemap(argout) void **value, void **gradient ""
%typemap(freearg) void **value, void **gradient ""

/* ---- Arrays -------------------------------------------------------------------------------------------- */

%typemap(jni) (const int64_t *shape, size_t ndim), const size_t *element_counts "jlongArray"
%typemap(jtype) (const int64_t *shape, size_t ndim), const size_t *element_counts "long[]"
%typemap(jstype) (const int64_t *shape, size_t ndim), const size_t *element_counts "long[]"
%typemap(javain) (const int64_t *shape, size_t ndim), const size_t *element_counts "$javainput"
%typemap(in) (const int64_t *shape, size_t ndim) %{
  if (!jni_longs(jenv, $input, (jlong **)&$1, &$2)) return $null;
%}
%typemap(freearg) (const int64_t *shape, size_t ndim) %{ free((void *)$1); %}
%typemap(argout) (const int64_t *shape, size_t ndim) ""
%typemap(in) const size_t *element_counts (size_t length) %{
  if (!jni_longs(jenv, $input, (jlong **)&$1, &length)) return $null;
%}
%typemap(freearg) const size_t *element_counts %{ free((void *)$1); %}
%typemap(argout) const size_t *element_counts ""

%typemap(jni) (dsgd_parameter *const *parameters, size_t count) "jlongArray"
%typemap(jtype) (dsgd_parameter *const *parameters, size_t count) "long[]"
%typemap(jstype) (dsgd_parameter *const *parameters, size_t count) "long[]"
%typemap(javain) (dsgd_parameter *const *parameters, size_t count) "$javainput"
%typemap(in) (dsgd_parameter *const *parameters, size_t count) %{
  if (!jni_longs(jenv, $input, (jlong **)&$1, &$2)) return $null;
%}
%typemap(freearg) (dsgd_parameter *const *parameters, size_t count) %{ free((void *)$1); %}
%typemap(argout) (dsgd_parameter *const *parameters, size_t count) ""

%typemap(jni) (int64_t *indices, size_t max) "jlongArray"
%typemap(jtype) (int64_t *indices, size_t max) "long[]"
%typemap(jstype) (int64_t *indices, size_t max) "long[]"
%typemap(javain) (int64_t *indices, size_t max) "$javainput"
%typemap(in) (int64_t *indices, size_t max) %{
  if (!jni_longs_out(jenv, $input, (jlong **)&$1, &$2)) return $null;
%}
/* arg4 and arg5 are the functions' `count`. */
%typemap(argout) (int64_t *indices, size_t max) %{
  if (result == DSGD_OK && *arg4 > 0) (*jenv)->SetLongArrayRegion(jenv, $input, 0, (jsize)*arg4, (const jlong *)$1);
%}
%typemap(freearg) (int64_t *indices, size_t max) %{ free($1); %}

%typemap(jni) (dsgd_op **ops, size_t max) "jlongArray"
%typemap(jtype) (dsgd_op **ops, size_t max) "long[]"
%typemap(jstype) (dsgd_op **ops, size_t max) "long[]"
%typemap(javain) (dsgd_op **ops, size_t max) "$javainput"
%typemap(in) (dsgd_op **ops, size_t max) %{
  if (!jni_longs_out(jenv, $input, (jlong **)&$1, &$2)) return $null;
%}
%typemap(argout) (dsgd_op **ops, size_t max) %{
  if (result == DSGD_OK && *arg5 > 0) (*jenv)->SetLongArrayRegion(jenv, $input, 0, (jsize)*arg5, (const jlong *)$1);
%}
%typemap(freearg) (dsgd_op **ops, size_t max) %{ free($1); %}

/* One number given out, as element 0 of an array. */
%define DSGD_OUTPUT_NUMBER(TYPE, JNI, JAVA, CTYPE, SET)
%typemap(jni) TYPE "JNI"
%typemap(jtype) TYPE "JAVA[]"
%typemap(jstype) TYPE "JAVA[]"
%typemap(javain) TYPE "$javainput"
%typemap(in) TYPE (CTYPE number = 0) "$1 = &number;"
%typemap(argout) TYPE {
  if (result == DSGD_OK) SET(jenv, $input, number$argnum);
}
%typemap(freearg) TYPE ""
%enddef
DSGD_OUTPUT_NUMBER(size_t *count, jlongArray, long, size_t, jni_set_long)
DSGD_OUTPUT_NUMBER(uint64_t *digest, jlongArray, long, uint64_t, jni_set_long)
DSGD_OUTPUT_NUMBER(int32_t *done, jintArray, int, int32_t, jni_set_int)

/* Options of an operation: user data, timeout_ms, channel; or null for the defaults. */
%typemap(jni) const dsgd_op_options *options "jlongArray"
%typemap(jtype) const dsgd_op_options *options "long[]"
%typemap(jstype) const dsgd_op_options *options "long[]"
%typemap(javain) const dsgd_op_options *options "$javainput"
%typemap(in) const dsgd_op_options *options (dsgd_op_options options) %{
  if (!jni_op_options(jenv, $input, &options)) return $null;
  $1 = $input != NULL ? &options : NULL;
%}
%typemap(freearg) const dsgd_op_options *options ""
%typemap(argout) const dsgd_op_options *options ""

%apply const dsgd_op_options *options { const dsgd_op_options *op_options };

/* ---- Structs ------------------------------------------------------------------------------------------- */

%typemap(jni) struct dsgd_step_result *result "jobjectArray"
%typemap(jtype) struct dsgd_step_result *result "StepResult[]"
%typemap(jstype) struct dsgd_step_result *result "StepResult[]"
%typemap(javain) struct dsgd_step_result *result "$javainput"
%typemap(in) struct dsgd_step_result *result (dsgd_step_result values) {
  dsgd_step_result_init(&values, sizeof values);
  $1 = &values;
}
%typemap(argout) struct dsgd_step_result *result {
  if (result == DSGD_OK) jni_set_step_result(jenv, $input, $1);
}
%typemap(freearg) struct dsgd_step_result *result ""

%typemap(jni) struct dsgd_session_info *info "jobjectArray"
%typemap(jtype) struct dsgd_session_info *info "SessionInfo[]"
%typemap(jstype) struct dsgd_session_info *info "SessionInfo[]"
%typemap(javain) struct dsgd_session_info *info "$javainput"
%typemap(in) struct dsgd_session_info *info (dsgd_session_info values) {
  dsgd_session_info_init(&values, sizeof values);
  $1 = &values;
}
%typemap(argout) struct dsgd_session_info *info {
  if (result == DSGD_OK) jni_set_session_info(jenv, $input, $1);
}
%typemap(freearg) struct dsgd_session_info *info ""

%typemap(jni) struct dsgd_config_key *key "jobjectArray"
%typemap(jtype) struct dsgd_config_key *key "String[]"
%typemap(jstype) struct dsgd_config_key *key "String[]"
%typemap(javain) struct dsgd_config_key *key "$javainput"
%typemap(in) struct dsgd_config_key *key (dsgd_config_key values) {
  dsgd_config_key_init(&values, sizeof values);
  $1 = &values;
}
%typemap(argout) struct dsgd_config_key *key {
  if (result == DSGD_OK) jni_set_config_key(jenv, $input, $1);
}
%typemap(freearg) struct dsgd_config_key *key ""

%include "../dsgd.i"

/* ---- What C alone can do for Java ---------------------------------------------------------------------- */

%typemap(in, numinputs=0) JNIEnv *jenv "$1 = jenv;"
%rename(buffer_over) jni_buffer_over;
%rename(buffer_address) jni_buffer_address;
%rename(dlpack_delete) jni_dlpack_delete;
%rename(dlpack_data) jni_dlpack_data;
/* A direct buffer over memory of C's; whoever asks keeps that memory mapped. */
jobject jni_buffer_over(JNIEnv *jenv, void *address, size_t nbytes);
/* Of a direct buffer. */
void *jni_buffer_address(JNIEnv *jenv, jobject buffer);
/* Calls a tensor's deleter; the address of its first element. */
void jni_dlpack_delete(struct DLManagedTensorVersioned *tensor);
void *jni_dlpack_data(struct DLManagedTensorVersioned *tensor);

/* Shared by the generated wrappers of dsgd_java.i: text, arrays, buffers and errors across JNI. A function
 * that returns int returns 0 after it has thrown; the wrapper then returns at once. */
#ifndef DSGD_JAVA_JNI_SUPPORT_H_
#define DSGD_JAVA_JNI_SUPPORT_H_

#include <dsgd/dsgd.h>
#include <jni.h>
#include <stdint.h>
#include <stdlib.h>

/* Throws the DsgdException of `status` with the fields of `error`, and frees `error` (may be NULL). */
void jni_throw(JNIEnv* env, int32_t status, dsgd_error* error);
/* Throws the DsgdException of DSGD_ERR_INVALID_ARGUMENT or DSGD_ERR_NO_MEMORY. */
void jni_throw_text(JNIEnv* env, int32_t status, const char* message);

/* *utf8 becomes a copy for free(); NULL for null. */
int jni_utf8(JNIEnv* env, jstring text, char** utf8);
/* null for NULL; bytes that are not UTF-8 become U+FFFD. */
jstring jni_string(JNIEnv* env, const char* utf8);

/* *values becomes a copy for free(); NULL and 0 for null. */
int jni_longs(JNIEnv* env, jlongArray array, jlong** values, size_t* length);
/* The same, zeroed instead of copied: for results. */
int jni_longs_out(JNIEnv* env, jlongArray array, jlong** values, size_t* length);

/* Fills `options` from {user data, timeout_ms, channel, stream}; leaves it alone for null. */
int jni_op_options(JNIEnv* env, jlongArray numbers, dsgd_op_options* options);

/* Address and bytes of a NativeArray; NULL and 0 for null. */
int jni_array(JNIEnv* env, jobject array, void** address, size_t* nbytes);
/* Returns the address of a whole direct buffer; ignores its position. */
void* jni_buffer_address(JNIEnv* env, jobject buffer);
jobject jni_buffer_over(JNIEnv* env, void* address, size_t nbytes);

void jni_set_long(JNIEnv* env, jlongArray array, uint64_t value);
void jni_set_int(JNIEnv* env, jintArray array, int32_t value);
void jni_set_step_result(JNIEnv* env, jobjectArray array, const dsgd_step_result* result);
void jni_set_session_info(JNIEnv* env, jobjectArray array, const dsgd_session_info* info);
void jni_set_config_key(JNIEnv* env, jobjectArray array, const dsgd_config_key* key);

void jni_dlpack_delete(struct DLManagedTensorVersioned* tensor);
void* jni_dlpack_data(struct DLManagedTensorVersioned* tensor);

#endif /* DSGD_JAVA_JNI_SUPPORT_H_ */

#include "jni_support.h"

#include <string.h>

#include "capi/src/dlpack_structs.h"

/* Looked up once, when the library is loaded, through the class loader that loads io.dsgd. */
static struct {
  jclass exception;
  jmethodID exception_of;
  jclass natives;
  jmethodID utf8_of;
  jmethodID string_of;
  jclass step_result;
  jmethodID step_result_new;
  jclass session_info;
  jmethodID session_info_new;
  jfieldID array_address;
  jfieldID array_nbytes;
} g_java;

static jclass global_class(JNIEnv* env, const char* name) {
  jclass local = (*env)->FindClass(env, name);
  return local == NULL ? NULL : (jclass)(*env)->NewGlobalRef(env, local);
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* vm, void* reserved) {
  JNIEnv* env;
  (void)reserved;
  if ((*vm)->GetEnv(vm, (void**)&env, JNI_VERSION_10) != JNI_OK) return JNI_ERR;
  jclass array;
  const int found =
      (g_java.exception = global_class(env, "io/dsgd/DsgdException")) &&
      (g_java.exception_of =
           (*env)->GetStaticMethodID(env, g_java.exception, "of",
                                     "(IILjava/lang/String;Ljava/lang/String;Ljava/lang/"
                                     "String;Ljava/lang/String;)Lio/dsgd/DsgdException;")) &&
      (g_java.natives = global_class(env, "io/dsgd/Natives")) &&
      (g_java.utf8_of = (*env)->GetStaticMethodID(env, g_java.natives, "utf8Of", "(Ljava/lang/String;)[B")) &&
      (g_java.string_of =
           (*env)->GetStaticMethodID(env, g_java.natives, "stringOf", "([B)Ljava/lang/String;")) &&
      (g_java.step_result = global_class(env, "io/dsgd/StepResult")) &&
      (g_java.step_result_new = (*env)->GetMethodID(env, g_java.step_result, "<init>", "(JJIZZZDDJIZ)V")) &&
      (g_java.session_info = global_class(env, "io/dsgd/SessionInfo")) &&
      (g_java.session_info_new = (*env)->GetMethodID(env, g_java.session_info, "<init>", "(JJJIIIIII)V")) &&
      (array = (*env)->FindClass(env, "io/dsgd/NativeArray")) &&
      (g_java.array_address = (*env)->GetFieldID(env, array, "address", "J")) &&
      (g_java.array_nbytes = (*env)->GetFieldID(env, array, "nbytes", "J"));
  return found ? JNI_VERSION_10 : JNI_ERR;
}

/* ---- Errors */

/* `error` may be NULL. */
static void throw_new(JNIEnv* env, int32_t status, const dsgd_error* error, const char* message) {
  jstring texts[4];
  const char* const kSources[4] = {dsgd_error_host(error), dsgd_error_operation(error),
                                   dsgd_error_parameter(error), message};
  for (int i = 0; i < 4; ++i) {
    texts[i] = jni_string(env, kSources[i]);
    if (texts[i] == NULL) return; /* OutOfMemoryError is on its way */
  }
  jobject exception =
      (*env)->CallStaticObjectMethod(env, g_java.exception, g_java.exception_of, (jint)status,
                                     (jint)dsgd_error_rank(error), texts[0], texts[1], texts[2], texts[3]);
  if (!(*env)->ExceptionCheck(env)) (*env)->Throw(env, (jthrowable)exception);
}

void jni_throw(JNIEnv* env, int32_t status, dsgd_error* error) {
  throw_new(env, status, error, dsgd_error_message(error));
  dsgd_error_free(error);
}

void jni_throw_text(JNIEnv* env, int32_t status, const char* message) {
  throw_new(env, status, NULL, message);
}

/* ---- Text, converted by Java: modified UTF-8, which JNI has functions for, is not UTF-8 */

int jni_utf8(JNIEnv* env, jstring text, char** utf8) {
  *utf8 = NULL;
  if (text == NULL) return 1;
  jbyteArray bytes = (jbyteArray)(*env)->CallStaticObjectMethod(env, g_java.natives, g_java.utf8_of, text);
  if ((*env)->ExceptionCheck(env)) return 0;
  const jsize length = (*env)->GetArrayLength(env, bytes);
  char* copy = (char*)calloc((size_t)length + 1, 1);
  if (copy == NULL) {
    jni_throw_text(env, DSGD_ERR_NO_MEMORY, "no memory to pass a string to dsgd");
    return 0;
  }
  (*env)->GetByteArrayRegion(env, bytes, 0, length, (jbyte*)copy);
  (*env)->DeleteLocalRef(env, bytes);
  if (strlen(copy) != (size_t)length) { /* C would silently end there */
    free(copy);
    jni_throw_text(env, DSGD_ERR_INVALID_ARGUMENT, "a string contains the character U+0000; remove it");
    return 0;
  }
  *utf8 = copy;
  return 1;
}

jstring jni_string(JNIEnv* env, const char* utf8) {
  if (utf8 == NULL) return NULL;
  const jsize length = (jsize)strlen(utf8);
  jbyteArray bytes = (*env)->NewByteArray(env, length);
  if (bytes == NULL) return NULL; /* OutOfMemoryError is on its way */
  (*env)->SetByteArrayRegion(env, bytes, 0, length, (const jbyte*)utf8);
  jstring text = (jstring)(*env)->CallStaticObjectMethod(env, g_java.natives, g_java.string_of, bytes);
  if ((*env)->ExceptionCheck(env)) return NULL;
  (*env)->DeleteLocalRef(env, bytes);
  return text;
}

/* ---- Arrays and numbers */

int jni_longs_out(JNIEnv* env, jlongArray array, jlong** values, size_t* length) {
  *values = NULL;
  *length = 0;
  if (array == NULL) return 1;
  *length = (size_t)(*env)->GetArrayLength(env, array);
  *values = (jlong*)calloc(*length + 1, sizeof **values); /* + 1: an empty array is not null */
  if (*values == NULL) {
    jni_throw_text(env, DSGD_ERR_NO_MEMORY, "no memory to pass an array to dsgd");
    return 0;
  }
  return 1;
}

int jni_longs(JNIEnv* env, jlongArray array, jlong** values, size_t* length) {
  if (!jni_longs_out(env, array, values, length)) return 0;
  if (array != NULL) (*env)->GetLongArrayRegion(env, array, 0, (jsize)*length, *values);
  return 1;
}

int jni_op_options(JNIEnv* env, jlongArray numbers, dsgd_op_options* options) {
  if (numbers == NULL) return 1;
  jlong given[4];
  (*env)->GetLongArrayRegion(env, numbers, 0, 4, given);
  if ((*env)->ExceptionCheck(env)) return 0;
  dsgd_op_options_init(options, sizeof *options);
  options->user_data = (void*)(intptr_t)given[0];
  options->timeout_ms = (int32_t)given[1];
  options->channel = (uint32_t)given[2];
  options->stream = (void*)(intptr_t)given[3];
  return 1;
}

void jni_set_long(JNIEnv* env, jlongArray array, uint64_t value) {
  const jlong number = (jlong)value;
  (*env)->SetLongArrayRegion(env, array, 0, 1, &number);
}

void jni_set_int(JNIEnv* env, jintArray array, int32_t value) {
  const jint number = value;
  (*env)->SetIntArrayRegion(env, array, 0, 1, &number);
}

void jni_set_step_result(JNIEnv* env, jobjectArray array, const dsgd_step_result* r) {
  if (array == NULL) return;
  jobject result = (*env)->NewObject(
      env, g_java.step_result, g_java.step_result_new, (jlong)r->step, (jlong)r->view, (jint)r->size,
      (jboolean)(r->applied != 0), (jboolean)(r->all_done != 0), (jboolean)(r->stop != 0), (jdouble)r->weight,
      (jdouble)r->gradient_norm, (jlong)r->nonfinite, (jint)r->nonfinite_rank, (jboolean)(r->skipped != 0));
  if (!(*env)->ExceptionCheck(env)) (*env)->SetObjectArrayElement(env, array, 0, result);
}

void jni_set_session_info(JNIEnv* env, jobjectArray array, const dsgd_session_info* info) {
  jobject made =
      (*env)->NewObject(env, g_java.session_info, g_java.session_info_new, (jlong)info->id, (jlong)info->view,
                        (jlong)info->steps, (jint)info->state, (jint)info->rank, (jint)info->size,
                        (jint)info->local_rank, (jint)info->local_size, (jint)info->replicas);
  if (!(*env)->ExceptionCheck(env)) (*env)->SetObjectArrayElement(env, array, 0, made);
}

void jni_set_config_key(JNIEnv* env, jobjectArray array, const dsgd_config_key* key) {
  const char* const kFields[] = {key->name,  key->type, key->default_value,
                                 key->range, key->help, key->environment};
  for (jsize i = 0; i < 6; ++i) {
    jstring text = jni_string(env, kFields[i]);
    if ((*env)->ExceptionCheck(env)) return;
    (*env)->SetObjectArrayElement(env, array, i, text);
    if ((*env)->ExceptionCheck(env)) return;
    (*env)->DeleteLocalRef(env, text);
  }
}

/* ---- Memory */

int jni_array(JNIEnv* env, jobject array, void** address, size_t* nbytes) {
  *address = NULL;
  *nbytes = 0;
  if (array == NULL) return 1;
  *address = (void*)(intptr_t)(*env)->GetLongField(env, array, g_java.array_address);
  *nbytes = (size_t)(*env)->GetLongField(env, array, g_java.array_nbytes);
  return 1;
}

void* jni_buffer_address(JNIEnv* env, jobject buffer) {
  void* address = (*env)->GetDirectBufferAddress(env, buffer);
  if (address == NULL) {
    jni_throw_text(env, DSGD_ERR_INVALID_ARGUMENT,
                   "the buffer is not direct; dsgd reads and writes buffers in place: make it with "
                   "ByteBuffer.allocateDirect or Replica.alloc");
  }
  return address;
}

jobject jni_buffer_over(JNIEnv* env, void* address, size_t nbytes) {
  static char nothing; /* an address for buffers of no bytes */
  return (*env)->NewDirectByteBuffer(env, address != NULL ? address : &nothing, (jlong)nbytes);
}

/* ---- DLPack */

void jni_dlpack_delete(struct DLManagedTensorVersioned* tensor) {
  if (tensor != NULL && tensor->deleter != NULL) tensor->deleter(tensor);
}

void* jni_dlpack_data(struct DLManagedTensorVersioned* tensor) {
  return tensor == NULL ? NULL : (char*)tensor->dl_tensor.data + tensor->dl_tensor.byte_offset;
}

#include "jni_support.h"

#include <string.h>

/* Looked up once, when the library is loaded, through the class loader that loads io.dsgd. */
static struct {
  jclass exception;
  jmethodID exception_of;
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
  g_java.exception = global_class(env, "io/dsgd/DsgdException");
  if (g_java.exception == NULL) return JNI_ERR;
  g_java.exception_of = (*env)->GetStaticMethodID(
      env, g_java.exception, "of",
      "(IILjava/lang/String;Ljava/lang/String;Ljava/lang/String;Ljava/lang/String;)Lio/dsgd/DsgdException;");
  if (g_java.exception_of == NULL) return JNI_ERR;
  g_java.step_result = global_class(env, "io/dsgd/StepResult");
  if (g_java.step_result == NULL) return JNI_ERR;
  g_java.step_result_new = (*env)->GetMethodID(env, g_java.step_result, "<init>", "(JJIZZZDD)V");
  if (g_java.step_result_new == NULL) return JNI_ERR;
  g_java.session_info = global_class(env, "io/dsgd/SessionInfo");
  if (g_java.session_info == NULL) return JNI_ERR;
  g_java.session_info_new = (*env)->GetMethodID(env, g_java.session_info, "<init>", "(JJJIIIIII)V");
  if (g_java.session_info_new == NULL) return JNI_ERR;
  jclass array = (*env)->FindClass(env, "io/dsgd/NativeArray");
  if (array == NULL) return JNI_ERR;
  g_java.array_address = (*env)->GetFieldID(env, array, "address", "J");
  g_java.array_nbytes = (*env)->GetFieldID(env, array, "nbytes", "J");
  if (g_java.array_address == NULL || g_java.array_nbytes == NULL) return JNI_ERR;
  return JNI_VERSION_10;
}

/* ---- Errors
 * ----------------------------------------------------------------------------------------------------- */

static void throw_new(JNIEnv* env, int32_t status, int32_t rank, const char* host, const char* operation,
                      const char* parameter, const char* message) {
  jstring texts[4];
  const char* const kSources[4] = {host, operation, parameter, message};
  for (int i = 0; i < 4; ++i) {
    texts[i] = jni_string(env, kSources[i] != NULL ? kSources[i] : "");
    if (texts[i] == NULL) return; /* OutOfMemoryError is on its way */
  }
  jobject exception = (*env)->CallStaticObjectMethod(env, g_java.exception, g_java.exception_of, (jint)status,
                                                     (jint)rank, texts[0], texts[1], texts[2], texts[3]);
  if (!(*env)->ExceptionCheck(env)) (*env)->Throw(env, (jthrowable)exception);
}

void jni_throw(JNIEnv* env, int32_t status, dsgd_error* error) {
  const char* message = dsgd_error_message(error);
  throw_new(env, status, error == NULL ? -1 : dsgd_error_rank(error), dsgd_error_host(error),
            dsgd_error_operation(error), dsgd_error_parameter(error), message != NULL ? message : "");
  dsgd_error_free(error);
}

void jni_throw_text(JNIEnv* env, int32_t status, const char* message) {
  throw_new(env, status, -1, "", "", "", message);
}

/* ---- Text
 * ------------------------------------------------------------------------------------------------------- */

int jni_utf8(JNIEnv* env, jstring text, char** utf8) {
  *utf8 = NULL;
  if (text == NULL) return 1;
  const size_t length = (size_t)(*env)->GetStringLength(env, text);
  jchar* units = (jchar*)malloc((length + 1) * sizeof *units);
  unsigned char* out = (unsigned char*)malloc(length * 3 + 1);
  if (units == NULL || out == NULL) {
    free(units);
    free(out);
    jni_throw_text(env, DSGD_ERR_NO_MEMORY, "no memory to pass a string to dsgd");
    return 0;
  }
  (*env)->GetStringRegion(env, text, 0, (jsize)length, units);
  unsigned char* end = out;
  for (size_t i = 0; i < length; ++i) {
    uint32_t c = units[i];
    if (c == 0) { /* C would silently end here */
      free(units);
      free(out);
      jni_throw_text(env, DSGD_ERR_INVALID_ARGUMENT, "a string contains the character U+0000; remove it");
      return 0;
    }
    if (c >= 0xD800 && c <= 0xDFFF) {
      const int paired = c < 0xDC00 && i + 1 < length && units[i + 1] >= 0xDC00 && units[i + 1] <= 0xDFFF;
      c = paired ? 0x10000 + ((c - 0xD800) << 10) + (units[++i] - 0xDC00u) : 0xFFFD;
    }
    if (c < 0x80) {
      *end++ = (unsigned char)c;
    } else if (c < 0x800) {
      *end++ = (unsigned char)(0xC0 | c >> 6);
      *end++ = (unsigned char)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
      *end++ = (unsigned char)(0xE0 | c >> 12);
      *end++ = (unsigned char)(0x80 | (c >> 6 & 0x3F));
      *end++ = (unsigned char)(0x80 | (c & 0x3F));
    } else {
      *end++ = (unsigned char)(0xF0 | c >> 18);
      *end++ = (unsigned char)(0x80 | (c >> 12 & 0x3F));
      *end++ = (unsigned char)(0x80 | (c >> 6 & 0x3F));
      *end++ = (unsigned char)(0x80 | (c & 0x3F));
    }
  }
  *end = '\0';
  free(units);
  *utf8 = (char*)out;
  return 1;
}

/* One code point from *bytes, which moves on; U+FFFD for what is not UTF-8. */
static uint32_t next_code_point(const unsigned char** bytes) {
  const unsigned char* p = *bytes;
  const uint32_t first = *p++;
  const int more = first < 0x80                    ? 0
                   : first >= 0xC2 && first < 0xE0 ? 1
                   : first >= 0xE0 && first < 0xF0 ? 2
                   : first >= 0xF0 && first < 0xF5 ? 3
                                                   : -1;
  *bytes = p;
  if (more < 0) return 0xFFFD;
  static const uint32_t kMask[] = {0x7F, 0x1F, 0x0F, 0x07};
  static const uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  uint32_t c = first & kMask[more];
  for (int i = 0; i < more; ++i, ++p) {
    if ((*p & 0xC0) != 0x80) return 0xFFFD; /* the terminating NUL too */
    c = c << 6 | (*p & 0x3F);
  }
  if (c < kLeast[more] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return 0xFFFD;
  *bytes = p;
  return c;
}

jstring jni_string(JNIEnv* env, const char* utf8) {
  if (utf8 == NULL) return NULL;
  jchar* units = (jchar*)malloc((strlen(utf8) + 1) * sizeof *units); /* never more units than bytes */
  if (units == NULL) {
    (*env)->ThrowNew(env, (*env)->FindClass(env, "java/lang/OutOfMemoryError"),
                     "no memory for a string of dsgd");
    return NULL;
  }
  jsize length = 0;
  for (const unsigned char* p = (const unsigned char*)utf8; *p != '\0';) {
    const uint32_t c = next_code_point(&p);
    if (c < 0x10000) {
      units[length++] = (jchar)c;
    } else {
      units[length++] = (jchar)(0xD800 + ((c - 0x10000) >> 10));
      units[length++] = (jchar)(0xDC00 + ((c - 0x10000) & 0x3FF));
    }
  }
  jstring text = (*env)->NewString(env, units, length);
  free(units);
  return text;
}

/* ---- Arrays and numbers
 * ------------------------------------------------------------------------------------------- */

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
  jlong given[3];
  (*env)->GetLongArrayRegion(env, numbers, 0, 3, given);
  if ((*env)->ExceptionCheck(env)) return 0;
  dsgd_op_options_init(options, sizeof *options);
  options->user_data = (void*)(intptr_t)given[0];
  options->timeout_ms = (int32_t)given[1];
  options->channel = (uint32_t)given[2];
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
  jobject result =
      (*env)->NewObject(env, g_java.step_result, g_java.step_result_new, (jlong)r->step, (jlong)r->view,
                        (jint)r->size, (jboolean)(r->applied != 0), (jboolean)(r->all_done != 0),
                        (jboolean)(r->stop != 0), (jdouble)r->weight, (jdouble)r->gradient_norm);
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

/* ---- Memory
 * ---------------------------------------------------------------------------------------------------- */

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

/* ---- DLPack
 * ----------------------------------------------------------------------------------------------------- */

/* The beginning of DLPack 1.x's struct, as far as it is needed here. */
struct DLManagedTensorVersioned {
  uint32_t major;
  uint32_t minor;
  void* manager_context;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  void* data;
  struct {
    int32_t device_type;
    int32_t device_id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
  } dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

void jni_dlpack_delete(struct DLManagedTensorVersioned* tensor) {
  if (tensor != NULL && tensor->deleter != NULL) tensor->deleter(tensor);
}

void* jni_dlpack_data(struct DLManagedTensorVersioned* tensor) {
  return tensor == NULL ? NULL : (char*)tensor->data + tensor->byte_offset;
}

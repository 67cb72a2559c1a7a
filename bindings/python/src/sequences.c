#include "sequences.h"

#include <stdlib.h>
#include <string.h>

#include "dlpack_capsules.h"
#include "errors.h"

int dsgd_py_string(PyObject* object, const char** text) {
  Py_ssize_t length = 0;
  *text = NULL;
  if (object == Py_None) return 1;
  if (PyBytes_Check(object)) {
    char* bytes = NULL;
    if (PyBytes_AsStringAndSize(object, &bytes, &length) < 0) return 0;
    *text = bytes;
  } else if (PyUnicode_Check(object)) {
    *text = PyUnicode_AsUTF8AndSize(object, &length);
    if (*text == NULL) return 0;
  } else {
    PyErr_Format(PyExc_TypeError, "expected a string, got %R", (PyObject*)Py_TYPE(object));
    return 0;
  }
  if (strlen(*text) != (size_t)length) {
    PyErr_Format(PyExc_ValueError,
                 "a NUL character within the string %R; dsgd's strings end at the first one", object);
    return 0;
  }
  return 1;
}

int dsgd_py_signed(PyObject* object, const char* argument, long long least, long long most,
                   long long* number) {
  int overflow = 0;
  *number = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow == 0 && *number == -1 && PyErr_Occurred()) return 0;
  if (overflow == 0 && *number >= least && *number <= most) return 1;
  dsgd_py_raise_invalid("argument '%s' is %S, out of range: %lld to %lld", argument, object, least, most);
  return 0;
}

int dsgd_py_unsigned(PyObject* object, const char* argument, unsigned long long most,
                     unsigned long long* number) {
  PyObject* index = PyNumber_Index(object);
  if (index == NULL) return 0;
  *number = PyLong_AsUnsignedLongLong(index);
  Py_DECREF(index);
  int outside = PyErr_Occurred() != NULL;
  if (outside && !PyErr_ExceptionMatches(PyExc_OverflowError)) return 0;
  if (!outside && *number <= most) return 1;
  PyErr_Clear();
  dsgd_py_raise_invalid("argument '%s' is %S; give 0 to %llu", argument, object, most);
  return 0;
}

int dsgd_py_double(PyObject* object, double* number) {
  *number = PyFloat_AsDouble(object);
  return *number != -1 || !PyErr_Occurred();
}

int dsgd_py_int64s(PyObject* sequence, const char* argument, int64_t** numbers, size_t* count) {
  Py_ssize_t length = PySequence_Size(sequence);
  if (length < 0) return 0;
  *numbers = (int64_t*)malloc(sizeof(int64_t) * (size_t)(length + 1));
  if (*numbers == NULL) {
    PyErr_NoMemory();
    return 0;
  }
  for (Py_ssize_t i = 0; i < length; ++i) {
    PyObject* item = PySequence_GetItem(sequence, i);
    PyObject* number = item != NULL ? PyNumber_Index(item) : NULL;
    (*numbers)[i] = number != NULL ? PyLong_AsLongLong(number) : -1;
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_OverflowError)) {
      PyErr_Clear();
      dsgd_py_raise_invalid("%s[%zd] is %S; give 0 to %lld", argument, i, number, (long long)INT64_MAX);
    }
    Py_XDECREF(number);
    Py_XDECREF(item);
    if (PyErr_Occurred()) return 0; /* freearg frees */
  }
  *count = (size_t)length;
  return 1;
}

int dsgd_py_op_options(PyObject* numbers, dsgd_op_options* options) {
  unsigned long long user_data = 0;
  int timeout_ms = -1;
  unsigned int channel = 0;
  unsigned long long stream = 0;
  if (!PyArg_ParseTuple(numbers, "KiIK", &user_data, &timeout_ms, &channel, &stream)) return 0;
  dsgd_op_options_init(options, sizeof *options);
  options->user_data = (void*)(uintptr_t)user_data;
  options->timeout_ms = timeout_ms;
  options->channel = channel;
  options->stream = (void*)(uintptr_t)stream;
  return 1;
}

_Static_assert(sizeof(size_t) == sizeof(int64_t), "counts are read as int64_t");

int dsgd_py_sizes(PyObject* sequence, const char* argument, size_t** numbers) {
  int64_t* counts = NULL;
  size_t length = 0;
  *numbers = NULL;
  if (sequence == Py_None) return 1;
  const int read = dsgd_py_int64s(sequence, argument, &counts, &length);
  *numbers = (size_t*)counts; /* freearg frees */
  if (!read) return 0;
  for (size_t i = 0; i < length; ++i) {
    if (counts[i] < 0) {
      dsgd_py_raise_invalid("%s[%zu] is %lld; a count of elements is 0 or more", argument, i,
                            (long long)counts[i]);
      return 0;
    }
  }
  (*numbers)[length] = SIZE_MAX;
  return 1;
}

int dsgd_py_buffer_get(PyObject* source, int writable, dsgd_py_buffer* buffer) {
  memset(buffer, 0, sizeof *buffer);
  if (source == Py_None) return 1;
  if (dsgd_py_is_tensor(source)) return dsgd_py_tensor_span(source, &buffer->data, &buffer->nbytes);
  if (PyObject_GetBuffer(source, &buffer->view, PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) < 0) {
    buffer->view.obj = NULL;
    return 0;
  }
  buffer->data = buffer->view.buf;
  buffer->nbytes = (size_t)buffer->view.len;
  return 1;
}

void dsgd_py_buffer_release(dsgd_py_buffer* buffer) {
  if (buffer->view.obj != NULL) PyBuffer_Release(&buffer->view);
}

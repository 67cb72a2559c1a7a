/* From Python's strings, sequences and buffers to C arguments. All return 1, or 0 with a Python exception
 * set. */
#ifndef DSGD_PYTHON_SEQUENCES_H_
#define DSGD_PYTHON_SEQUENCES_H_

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dsgd/dsgd.h>
#include <stddef.h>
#include <stdint.h>

/* str, bytes or None; the characters belong to `object`. */
int dsgd_py_string(PyObject* object, const char** text);

/* Convert an object that Python takes for an integer (__index__) or a real number (__float__). `argument`:
 * its name, for the error of a number that is out of range. */
int dsgd_py_signed(PyObject* object, const char* argument, long long least, long long most,
                   long long* number);
int dsgd_py_unsigned(PyObject* object, const char* argument, unsigned long long most,
                     unsigned long long* number);
int dsgd_py_double(PyObject* object, double* number);

/* Sequences of integers, in memory from malloc. sizes: None gives NULL; SIZE_MAX follows the last number.
 * dsgd refuses a count of elements that exceeds the buffer, and reads none after it. So a sequence may be too
 * short. */
int dsgd_py_int64s(PyObject* sequence, const char* argument, int64_t** numbers, size_t* count);
int dsgd_py_sizes(PyObject* sequence, const char* argument, size_t** numbers);

/* From (user data, timeout_ms, channel). */
int dsgd_py_op_options(PyObject* numbers, dsgd_op_options* options);

typedef struct {
  Py_buffer view; /* held while view.obj is set */
  void* data;
  size_t nbytes;
} dsgd_py_buffer;

/* `source`: a contiguous buffer, writable if `writable`; a tensor from dsgd_py_tensor_import; None for NULL
 * and 0. */
int dsgd_py_buffer_get(PyObject* source, int writable, dsgd_py_buffer* buffer);
void dsgd_py_buffer_release(dsgd_py_buffer* buffer);

#endif

/* From dsgd's errors and structs to Python's exceptions and tuples. */
#ifndef DSGD_PYTHON_ERRORS_H_
#define DSGD_PYTHON_ERRORS_H_

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dsgd/dsgd.h>

/* Raises the exception for `status`, with the particulars of `error` (may be NULL), which it frees. */
void dsgd_py_raise(int32_t status, dsgd_error* error);
/* As dsgd_py_raise, for a function of C that returns a status and no dsgd_error. */
void dsgd_py_raise_status(int32_t status, const char* function);
/* Raises dsgd.InvalidArgumentError with a text that PyUnicode_FromFormat makes. */
void dsgd_py_raise_invalid(const char* format, ...);
PyObject* dsgd_py_step_result(const dsgd_step_result* result);
PyObject* dsgd_py_session_info(const dsgd_session_info* info);
PyObject* dsgd_py_config_key(const dsgd_config_key* key);
PyObject* dsgd_py_op_ids(dsgd_op* const* ops, size_t count);

#endif

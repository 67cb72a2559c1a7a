#include "errors.h"

#include <stdarg.h>
#include <string.h>

/* Takes `text` over; NULL: Python's own error is set, and stays. */
static void raise_error(int32_t status, PyObject* text, const dsgd_error* error) {
  PyObject* module = text != NULL ? PyImport_ImportModule("dsgd._errors") : NULL;
  PyObject* exception = NULL;
  if (module != NULL) {
    exception =
        PyObject_CallMethod(module, "from_status", "iOisss", (int)status, text, (int)dsgd_error_rank(error),
                            dsgd_error_host(error), dsgd_error_operation(error), dsgd_error_parameter(error));
    Py_DECREF(module);
  }
  Py_XDECREF(text);
  if (exception == NULL) return; /* Python's own error is set */
  PyErr_SetObject((PyObject*)Py_TYPE(exception), exception);
  Py_DECREF(exception);
}

void dsgd_py_raise(int32_t status, dsgd_error* error) {
  const char* message = dsgd_error_message(error); /* "" for NULL */
  /* "replace", since a path within a message need not be UTF-8. */
  raise_error(status, PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace"), error);
  dsgd_error_free(error);
}

void dsgd_py_raise_status(int32_t status, const char* function) {
  PyObject* module = PyImport_ImportModule("dsgd._errors");
  PyObject* text =
      module != NULL ? PyObject_CallMethod(module, "status_text", "is", (int)status, function) : NULL;
  Py_XDECREF(module);
  raise_error(status, text, NULL);
}

void dsgd_py_raise_invalid(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  raise_error(DSGD_ERR_INVALID_ARGUMENT, PyUnicode_FromFormatV(format, arguments), NULL);
  va_end(arguments);
}

PyObject* dsgd_py_step_result(const dsgd_step_result* result) {
  return Py_BuildValue("LLiNNNddLiN", (long long)result->step, (long long)result->view, (int)result->size,
                       PyBool_FromLong(result->applied), PyBool_FromLong(result->all_done),
                       PyBool_FromLong(result->stop), result->weight, result->gradient_norm,
                       (long long)result->nonfinite, (int)result->nonfinite_rank,
                       PyBool_FromLong(result->skipped));
}

PyObject* dsgd_py_session_info(const dsgd_session_info* info) {
  return Py_BuildValue("KLLiiiiii", (unsigned long long)info->id, (long long)info->view,
                       (long long)info->steps, (int)info->state, (int)info->rank, (int)info->size,
                       (int)info->local_rank, (int)info->local_size, (int)info->replicas);
}

PyObject* dsgd_py_config_key(const dsgd_config_key* key) {
  return Py_BuildValue("ssssss", key->name, key->type, key->default_value, key->range, key->help,
                       key->environment);
}

PyObject* dsgd_py_op_ids(dsgd_op* const* ops, size_t count) {
  PyObject* list = PyList_New((Py_ssize_t)count);
  for (size_t i = 0; list != NULL && i < count; ++i) {
    PyObject* id = PyLong_FromUnsignedLongLong(dsgd_op_id(ops[i]));
    if (id == NULL || PyList_SetItem(list, (Py_ssize_t)i, id) < 0) Py_CLEAR(list);
  }
  for (size_t i = 0; i < count; ++i) dsgd_op_free(ops[i]); /* the references of the poll */
  return list;
}

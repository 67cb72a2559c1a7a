/* Memory that dsgd owns, as a Python object with the buffer protocol. The object holds a reference to what
 * owns the memory, so that a NumPy array over it stays good after the session is closed and freed. */
#ifndef DSGD_PYTHON_MEMORY_REGION_H_
#define DSGD_PYTHON_MEMORY_REGION_H_

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dsgd/dsgd.h>

/* The value (gradient = 0) or the gradient of `memory` with one-letter struct `format` and `shape`. Both
 * functions take their first argument over, also on failure. */
PyObject* dsgd_py_memory_region(dsgd_memory* memory, int gradient, const char* format, PyObject* shape);
/* An object's bytes, read-only. */
PyObject* dsgd_py_object_region(dsgd_object* object);

#endif

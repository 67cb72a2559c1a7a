/* DLPack tensors as Python passes them: in capsules, of version 1.x or of the time before versions. */
#ifndef DSGD_PYTHON_DLPACK_CAPSULES_H_
#define DSGD_PYTHON_DLPACK_CAPSULES_H_

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>

struct DLManagedTensorVersioned;

/* Takes the tensor out of a capsule from __dlpack__ and returns a "tensor": a capsule of our own that owns it
 * and calls its deleter, under the GIL, when it dies. */
PyObject* dsgd_py_tensor_import(PyObject* capsule);
int dsgd_py_is_tensor(PyObject* object);
/* (device type, type code, bits, lanes, shape, read-only, contiguous, address) */
PyObject* dsgd_py_tensor_info(PyObject* tensor);
/* The bytes of a contiguous tensor. 1, or 0 with an exception set. */
int dsgd_py_tensor_span(PyObject* tensor, void** data, size_t* nbytes);

/* A new DLPack tensor that describes the bytes of a contiguous tensor. `object` is (tensor, shape, owner):
 * the new tensor has this shape, and refers to `owner`. Its deleter needs no GIL; what it refers to is let go
 * by the next dsgd_py_tensors_release(). None gives NULL. 1, or 0 with an exception set. */
int dsgd_py_tensor_describe(PyObject* object, struct DLManagedTensorVersioned** described);
void dsgd_py_tensor_drop(struct DLManagedTensorVersioned* described);
void dsgd_py_tensors_release(void);

/* Tensors from dsgd_export_dlpack as a pair of capsules, None for NULL. Takes both over. */
PyObject* dsgd_py_capsule_pair(struct DLManagedTensorVersioned* value,
                               struct DLManagedTensorVersioned* gradient);
/* A versioned capsule of ours turned into one for consumers from before DLPack 1.0. */
PyObject* dsgd_py_tensor_legacy(PyObject* capsule);

#endif

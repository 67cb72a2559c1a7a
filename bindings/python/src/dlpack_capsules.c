#include "dlpack_capsules.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "capi/src/dlpack_structs.h"

static const char kVersioned[] = "dltensor_versioned";
static const char kVersionedUsed[] = "used_dltensor_versioned";
static const char kLegacy[] = "dltensor";
static const char kLegacyUsed[] = "used_dltensor";
static const char kTensor[] = "dsgd.tensor";

/* Exactly one is set. */
typedef struct {
  DLManagedTensorVersioned* versioned;
  DLManagedTensor* legacy;
} Tensor;

static void tensor_destroy(PyObject* capsule) {
  Tensor* tensor = (Tensor*)PyCapsule_GetPointer(capsule, kTensor);
  if (tensor->versioned != NULL && tensor->versioned->deleter != NULL)
    tensor->versioned->deleter(tensor->versioned);
  if (tensor->legacy != NULL && tensor->legacy->deleter != NULL) tensor->legacy->deleter(tensor->legacy);
  free(tensor);
}

PyObject* dsgd_py_tensor_import(PyObject* capsule) {
  int versioned = PyCapsule_IsValid(capsule, kVersioned);
  if (!versioned && !PyCapsule_IsValid(capsule, kLegacy)) {
    PyErr_Format(PyExc_TypeError, "__dlpack__ gave %R, which is no unused DLPack capsule", capsule);
    return NULL;
  }
  void* pointer = PyCapsule_GetPointer(capsule, versioned ? kVersioned : kLegacy);
  if (versioned && ((DLManagedTensorVersioned*)pointer)->version.major != DLPACK_MAJOR) {
    PyErr_Format(PyExc_BufferError, "the tensor speaks DLPack %u, this library %d; give it as a NumPy array",
                 ((DLManagedTensorVersioned*)pointer)->version.major, DLPACK_MAJOR);
    return NULL; /* the capsule's own destructor calls the deleter */
  }
  Tensor* tensor = (Tensor*)calloc(1, sizeof *tensor);
  if (tensor == NULL) return PyErr_NoMemory();
  if (versioned) {
    tensor->versioned = (DLManagedTensorVersioned*)pointer;
  } else {
    tensor->legacy = (DLManagedTensor*)pointer;
  }
  PyObject* result = PyCapsule_New(tensor, kTensor, tensor_destroy);
  if (result == NULL) {
    free(tensor);
    return NULL;
  }
  PyCapsule_SetName(capsule, versioned ? kVersionedUsed : kLegacyUsed);
  return result;
}

int dsgd_py_is_tensor(PyObject* object) { return PyCapsule_IsValid(object, kTensor); }

static const DLTensor* tensor_of(PyObject* object, uint64_t* flags) {
  Tensor* tensor = (Tensor*)PyCapsule_GetPointer(object, kTensor);
  if (tensor == NULL) return NULL;
  *flags = tensor->versioned != NULL ? tensor->versioned->flags : 0;
  return tensor->versioned != NULL ? &tensor->versioned->dl_tensor : &tensor->legacy->dl_tensor;
}

static size_t tensor_nbytes(const DLTensor* tensor) {
  size_t nbytes = ((size_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
  for (int32_t i = 0; i < tensor->ndim; ++i) nbytes *= (size_t)tensor->shape[i];
  return nbytes;
}

static int is_contiguous(const DLTensor* tensor) {
  if (tensor->strides == NULL || tensor_nbytes(tensor) == 0) return 1;
  int64_t stride = 1;
  for (int32_t i = tensor->ndim; i-- > 0;) {
    if (tensor->shape[i] != 1 && tensor->strides[i] != stride) return 0;
    stride *= tensor->shape[i];
  }
  return 1;
}

PyObject* dsgd_py_tensor_info(PyObject* object) {
  uint64_t flags = 0;
  const DLTensor* tensor = tensor_of(object, &flags);
  if (tensor == NULL) return NULL;
  PyObject* shape = PyTuple_New(tensor->ndim);
  for (int32_t i = 0; shape != NULL && i < tensor->ndim; ++i) {
    PyObject* size = PyLong_FromLongLong(tensor->shape[i]);
    if (size == NULL || PyTuple_SetItem(shape, i, size) < 0) Py_CLEAR(shape);
  }
  if (shape == NULL) return NULL;
  return Py_BuildValue(
      "iiiiNNNN", (int)tensor->device.device_type, (int)tensor->dtype.code, (int)tensor->dtype.bits,
      (int)tensor->dtype.lanes, shape, PyBool_FromLong((flags & DLPACK_READ_ONLY) != 0),
      PyBool_FromLong(is_contiguous(tensor)), PyLong_FromVoidPtr((char*)tensor->data + tensor->byte_offset));
}

int dsgd_py_tensor_span(PyObject* object, void** data, size_t* nbytes) {
  uint64_t flags = 0;
  const DLTensor* tensor = tensor_of(object, &flags);
  if (tensor == NULL) return 0;
  if (!is_contiguous(tensor)) {
    PyErr_SetString(PyExc_BufferError, "the tensor is not contiguous in row-major order; make it so first");
    return 0;
  }
  *data = (char*)tensor->data + tensor->byte_offset;
  *nbytes = tensor_nbytes(tensor);
  return 1;
}

/* A tensor that describes the bytes of another one. It refers to their owner, a Python object. */
typedef struct Description {
  DLManagedTensorVersioned tensor;
  PyObject* owner;
  struct Description* next;
} Description;

/* dsgd deletes descriptions on any thread, without the GIL. They wait here for dsgd_py_tensors_release(). */
static Description* deleted;
static pthread_mutex_t deleted_mutex = PTHREAD_MUTEX_INITIALIZER;

static void delete_description(DLManagedTensorVersioned* self) {
  Description* description = (Description*)self;
  pthread_mutex_lock(&deleted_mutex);
  description->next = deleted;
  deleted = description;
  pthread_mutex_unlock(&deleted_mutex);
}

void dsgd_py_tensors_release(void) {
  pthread_mutex_lock(&deleted_mutex);
  Description* description = deleted;
  deleted = NULL;
  pthread_mutex_unlock(&deleted_mutex);
  while (description != NULL) {
    Description* next = description->next;
    Py_DECREF(description->owner);
    free(description);
    description = next;
  }
}

int dsgd_py_tensor_describe(PyObject* object, DLManagedTensorVersioned** described) {
  uint64_t flags = 0;
  PyObject *tensor, *shape, *owner;
  *described = NULL;
  if (object == Py_None) return 1;
  if (!PyArg_ParseTuple(object, "OO!O", &tensor, &PyTuple_Type, &shape, &owner)) return 0;
  const DLTensor* described_tensor = tensor_of(tensor, &flags);
  if (described_tensor == NULL) return 0;
  const Py_ssize_t ndim = PyTuple_Size(shape);
  Description* copy = (Description*)calloc(1, sizeof *copy + sizeof(int64_t) * (size_t)ndim);
  if (copy == NULL) {
    PyErr_NoMemory();
    return 0;
  }
  copy->tensor.version.major = DLPACK_MAJOR;
  copy->tensor.version.minor = DLPACK_MINOR;
  copy->tensor.deleter = delete_description;
  copy->tensor.flags = flags;
  copy->tensor.dl_tensor = *described_tensor;
  copy->tensor.dl_tensor.ndim = (int32_t)ndim;
  copy->tensor.dl_tensor.shape = (int64_t*)(copy + 1);
  copy->tensor.dl_tensor.strides = NULL;
  for (Py_ssize_t i = 0; i < ndim; ++i) {
    copy->tensor.dl_tensor.shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    if (PyErr_Occurred()) {
      free(copy);
      return 0;
    }
  }
  Py_INCREF(owner);
  copy->owner = owner;
  *described = &copy->tensor;
  return 1;
}

void dsgd_py_tensor_drop(DLManagedTensorVersioned* described) {
  if (described == NULL) return;
  delete_description(described);
  dsgd_py_tensors_release();
}

static void versioned_destroy(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, kVersioned)) return; /* a consumer has taken the tensor */
  DLManagedTensorVersioned* tensor = (DLManagedTensorVersioned*)PyCapsule_GetPointer(capsule, kVersioned);
  tensor->deleter(tensor);
}

/* None for NULL. On failure the tensor is deleted. */
static PyObject* versioned_capsule(DLManagedTensorVersioned* tensor) {
  if (tensor == NULL) Py_RETURN_NONE;
  PyObject* capsule = PyCapsule_New(tensor, kVersioned, versioned_destroy);
  if (capsule == NULL) tensor->deleter(tensor);
  return capsule;
}

PyObject* dsgd_py_capsule_pair(DLManagedTensorVersioned* value, DLManagedTensorVersioned* gradient) {
  PyObject* first = versioned_capsule(value);
  PyObject* second = versioned_capsule(gradient);
  if (first == NULL || second == NULL) {
    Py_XDECREF(first);
    Py_XDECREF(second);
    return NULL;
  }
  return Py_BuildValue("NN", first, second);
}

static void delete_legacy(DLManagedTensor* self) {
  DLManagedTensorVersioned* versioned = (DLManagedTensorVersioned*)self->manager_ctx;
  versioned->deleter(versioned);
  free(self);
}

static void legacy_destroy(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, kLegacy)) return;
  delete_legacy((DLManagedTensor*)PyCapsule_GetPointer(capsule, kLegacy));
}

PyObject* dsgd_py_tensor_legacy(PyObject* capsule) {
  DLManagedTensorVersioned* versioned = (DLManagedTensorVersioned*)PyCapsule_GetPointer(capsule, kVersioned);
  if (versioned == NULL) return NULL;
  DLManagedTensor* legacy = (DLManagedTensor*)calloc(1, sizeof *legacy);
  if (legacy == NULL) return PyErr_NoMemory();
  legacy->dl_tensor = versioned->dl_tensor; /* shape and strides stay the versioned tensor's */
  legacy->manager_ctx = versioned;
  legacy->deleter = delete_legacy;
  PyObject* result = PyCapsule_New(legacy, kLegacy, legacy_destroy);
  if (result == NULL) {
    free(legacy);
    return NULL;
  }
  PyCapsule_SetName(capsule, kVersionedUsed);
  return result;
}

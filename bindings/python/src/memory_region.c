#include "memory_region.h"

#include <stdlib.h>

#include "sequences.h"

typedef struct {
  PyObject_HEAD dsgd_memory* memory; /* one of the two is set */
  dsgd_object* object;
  void* data;
  Py_ssize_t nbytes;
  Py_ssize_t itemsize;
  int readonly;
  int ndim;
  char format[2];
  Py_ssize_t* shape; /* ndim sizes, then ndim strides in bytes */
} Region;

static char empty; /* address of regions without bytes */

static void region_dealloc(PyObject* self) {
  Region* region = (Region*)self;
  PyTypeObject* type = Py_TYPE(self);
  dsgd_memory_free(region->memory);
  dsgd_object_free(region->object);
  free(region->shape);
  PyObject_Free(self);
  Py_DECREF(type);
}

static int region_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  Region* region = (Region*)self;
  if ((flags & PyBUF_WRITABLE) && region->readonly) {
    PyErr_SetString(PyExc_BufferError, "an object's bytes are read-only; copy them to change them");
    view->obj = NULL;
    return -1;
  }
  view->buf = region->data;
  view->obj = self;
  Py_INCREF(self);
  view->len = region->nbytes;
  view->itemsize = region->itemsize;
  view->readonly = region->readonly;
  view->ndim = region->ndim;
  view->format = (flags & PyBUF_FORMAT) ? region->format : NULL;
  view->shape = (flags & PyBUF_ND) ? region->shape : NULL;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? region->shape + region->ndim : NULL;
  view->suboffsets = NULL;
  view->internal = NULL;
  return 0;
}

static PyType_Slot region_slots[] = {
    {Py_tp_dealloc, region_dealloc},
    {Py_bf_getbuffer, region_getbuffer},
    {Py_tp_doc, "Memory of dsgd's, through the buffer protocol."},
    {0, NULL},
};
static PyType_Spec region_spec = {"dsgd._raw.Region", sizeof(Region), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, region_slots};

/* Takes over whichever owner is given. */
static PyObject* region_new(dsgd_memory* memory, dsgd_object* object, void* data, size_t nbytes, int readonly,
                            char format, const int64_t* shape, size_t ndim) {
  static PyObject* type; /* made once, under the GIL, kept for good */
  Region* region = NULL;
  Py_ssize_t* sizes = (Py_ssize_t*)malloc(sizeof(Py_ssize_t) * (2 * ndim + 1));
  if (type == NULL) type = PyType_FromSpec(&region_spec);
  if (sizes == NULL) PyErr_NoMemory();
  if (type != NULL && sizes != NULL) region = PyObject_New(Region, (PyTypeObject*)type);
  if (region == NULL) {
    free(sizes);
    dsgd_memory_free(memory);
    dsgd_object_free(object);
    return NULL;
  }
  region->memory = memory;
  region->object = object;
  region->data = data != NULL ? data : &empty;
  region->nbytes = (Py_ssize_t)nbytes;
  region->itemsize = format == 'B' || format == 'b'   ? 1
                     : format == 'e' || format == 'H' ? 2
                     : format == 'f' || format == 'i' ? 4
                                                      : 8;
  region->readonly = readonly;
  region->ndim = (int)ndim;
  region->format[0] = format;
  region->format[1] = '\0';
  region->shape = sizes;
  Py_ssize_t stride = region->itemsize;
  for (size_t i = ndim; i-- > 0;) {
    sizes[i] = (Py_ssize_t)shape[i];
    sizes[ndim + i] = stride;
    stride *= sizes[i];
  }
  return (PyObject*)region;
}

PyObject* dsgd_py_memory_region(dsgd_memory* memory, int gradient, const char* format, PyObject* shape) {
  int64_t* sizes = NULL;
  size_t ndim = 0;
  if (!dsgd_py_int64s(shape, "shape", &sizes, &ndim)) {
    free(sizes);
    dsgd_memory_free(memory);
    return NULL;
  }
  void* data = gradient ? dsgd_memory_gradient(memory) : dsgd_memory_value(memory);
  PyObject* region = region_new(memory, NULL, data, dsgd_memory_nbytes(memory), 0, format[0], sizes, ndim);
  free(sizes);
  return region;
}

PyObject* dsgd_py_object_region(dsgd_object* object) {
  static const char formats[] = "fdiqBeHbQ"; /* by dtype; bfloat16 has no letter and is seen as its bits */
  int64_t nbytes = (int64_t)dsgd_object_nbytes(object);
  int32_t dtype = dsgd_object_dtype(object);
  int is_array = dtype >= 0 && dtype < (int32_t)(sizeof formats - 1);
  PyObject* region = region_new(
      NULL, object, (void*)dsgd_object_data(object), (size_t)nbytes, 1, is_array ? formats[dtype] : 'B',
      is_array ? dsgd_object_shape(object) : &nbytes, is_array ? dsgd_object_ndim(object) : 1);
  return region == NULL ? NULL : Py_BuildValue("NO", region, is_array ? Py_True : Py_False);
}

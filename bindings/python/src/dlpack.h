/* The structs of DLPack 1.x, as https://github.com/dmlc/dlpack defines them; its ABI within a major version
 * is fixed. */
#ifndef DSGD_PYTHON_DLPACK_H_
#define DSGD_PYTHON_DLPACK_H_

#include <stdint.h>

#define DLPACK_MAJOR 1
#define DLPACK_MINOR 0
#define DLPACK_READ_ONLY 1u

typedef struct {
  uint32_t major, minor;
} DLPackVersion;

typedef struct {
  int32_t device_type; /* 1: CPU, 3: host memory pinned by CUDA */
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code; /* 0: signed, 1: unsigned, 2: floating point */
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL: row-major */
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

#endif

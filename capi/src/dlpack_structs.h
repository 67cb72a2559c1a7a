/* The structs of DLPack 1.x (https://github.com/dmlc/dlpack, include/dlpack/dlpack.h), for this library and
 * the bindings. dsgd.h only names DLManagedTensorVersioned, so that hosts may include the official header
 * beside it. */
#ifndef DSGD_CAPI_SRC_DLPACK_STRUCTS_H_
#define DSGD_CAPI_SRC_DLPACK_STRUCTS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DLPACK_MAJOR 1
#define DLPACK_MINOR 0
#define DLPACK_READ_ONLY 1u

typedef struct {
  uint32_t major, minor;
} DLPackVersion;

typedef struct {
  int32_t device_type; /* 1: CPU, 2: CUDA, 3: host memory pinned by CUDA, 13: memory of host and GPU */
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code; /* 0: signed, 1: unsigned, 2: floating point, 4: bfloat */
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL: row-major without gaps */
  uint64_t byte_offset;
} DLTensor;

/* The struct of DLPack before 1.0. */
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;

/* In every major version `version`, `manager_ctx` and `deleter` come first. Nothing else may be read of a
 * tensor of another major version. */
typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

#ifdef __cplusplus
}
#endif

#endif

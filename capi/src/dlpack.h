// The structs of DLPack 1.x (https://github.com/dmlc/dlpack, include/dlpack/dlpack.h), as far as they are
// exchanged here. dsgd.h only names DLManagedTensorVersioned, so that hosts may include the official header
// beside it.
#pragma once

#include <cstdint>

extern "C" {

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major without gaps
  uint64_t byte_offset;
};

// Version and deleter come first in every major version; of a tensor of another one nothing else may be read.
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

}  // extern "C"

namespace dsgd::capi {

inline constexpr uint32_t kDlpackMajor = 1;
inline constexpr uint32_t kDlpackMinor = 0;
inline constexpr int32_t kDlCpu = 1;
inline constexpr int32_t kDlCuda = 2;
inline constexpr int32_t kDlCudaHost = 3;      // pinned memory of the host
inline constexpr int32_t kDlCudaManaged = 13;  // memory of host and GPU
inline constexpr uint8_t kDlInt = 0, kDlUInt = 1, kDlFloat = 2, kDlBfloat = 4;
inline constexpr uint64_t kDlReadOnly = 1;

}  // namespace dsgd::capi

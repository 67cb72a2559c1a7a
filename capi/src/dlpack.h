// Names for the numbers in DLPack's structs.
#pragma once

#include "capi/src/dlpack_structs.h"

namespace dsgd::capi {

inline constexpr int32_t kDlCpu = 1;
inline constexpr int32_t kDlCuda = 2;
inline constexpr int32_t kDlCudaHost = 3;      // pinned memory of the host
inline constexpr int32_t kDlCudaManaged = 13;  // memory of host and GPU
inline constexpr uint8_t kDlInt = 0, kDlUInt = 1, kDlFloat = 2, kDlBfloat = 4;

}  // namespace dsgd::capi

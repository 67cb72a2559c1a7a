// Version, optional parts, names of codes, sizes of dtypes: what needs neither handle nor state.
#include <string_view>

#include "capi/src/backends.h"
#include "capi/src/call.h"
#include "core/base/dtype.h"
#include "dsgd/dsgd.h"
#include "transport/base/status.h"

// One list of codes for the boundary and the inside.
static_assert(static_cast<int32_t>(dsgd::Code::kOk) == DSGD_OK);
static_assert(static_cast<int32_t>(dsgd::Code::kInvalidArgument) == DSGD_ERR_INVALID_ARGUMENT);
static_assert(static_cast<int32_t>(dsgd::Code::kState) == DSGD_ERR_STATE);
static_assert(static_cast<int32_t>(dsgd::Code::kClosed) == DSGD_ERR_CLOSED);
static_assert(static_cast<int32_t>(dsgd::Code::kForked) == DSGD_ERR_FORKED);
static_assert(static_cast<int32_t>(dsgd::Code::kTimeout) == DSGD_ERR_TIMEOUT);
static_assert(static_cast<int32_t>(dsgd::Code::kWaitTimeout) == DSGD_ERR_WAIT_TIMEOUT);
static_assert(static_cast<int32_t>(dsgd::Code::kAborted) == DSGD_ERR_ABORTED);
static_assert(static_cast<int32_t>(dsgd::Code::kWorkerLost) == DSGD_ERR_WORKER_LOST);
static_assert(static_cast<int32_t>(dsgd::Code::kMismatch) == DSGD_ERR_MISMATCH);
static_assert(static_cast<int32_t>(dsgd::Code::kNotFound) == DSGD_ERR_NOT_FOUND);
static_assert(static_cast<int32_t>(dsgd::Code::kExists) == DSGD_ERR_EXISTS);
static_assert(static_cast<int32_t>(dsgd::Code::kUnauthorized) == DSGD_ERR_UNAUTHORIZED);
static_assert(static_cast<int32_t>(dsgd::Code::kUnreachable) == DSGD_ERR_UNREACHABLE);
static_assert(static_cast<int32_t>(dsgd::Code::kAddressInUse) == DSGD_ERR_ADDRESS_IN_USE);
static_assert(static_cast<int32_t>(dsgd::Code::kNoMemory) == DSGD_ERR_NO_MEMORY);
static_assert(static_cast<int32_t>(dsgd::Code::kLimit) == DSGD_ERR_LIMIT);
static_assert(static_cast<int32_t>(dsgd::Code::kIo) == DSGD_ERR_IO);
static_assert(static_cast<int32_t>(dsgd::Code::kUnsupported) == DSGD_ERR_UNSUPPORTED);
static_assert(static_cast<int32_t>(dsgd::Code::kTorn) == DSGD_ERR_TORN);
static_assert(static_cast<int32_t>(dsgd::Code::kInternal) == DSGD_ERR_INTERNAL);
static_assert(static_cast<int32_t>(dsgd::Code::kDiverged) == DSGD_ERR_DIVERGED);
static_assert(static_cast<int32_t>(dsgd::Code::kCorrupted) == DSGD_ERR_CORRUPTED);
static_assert(static_cast<int32_t>(dsgd::Code::kViewChanged) == DSGD_ERR_VIEW_CHANGED);
static_assert(static_cast<int32_t>(dsgd::Code::kNonFinite) == DSGD_ERR_NON_FINITE);
static_assert(static_cast<int32_t>(dsgd::Code::kEvicted) == DSGD_ERR_EVICTED);

static_assert(static_cast<int32_t>(dsgd::DType::kFloat32) == DSGD_FLOAT32);
static_assert(static_cast<int32_t>(dsgd::DType::kFloat64) == DSGD_FLOAT64);
static_assert(static_cast<int32_t>(dsgd::DType::kInt32) == DSGD_INT32);
static_assert(static_cast<int32_t>(dsgd::DType::kInt64) == DSGD_INT64);
static_assert(static_cast<int32_t>(dsgd::DType::kUint8) == DSGD_UINT8);
static_assert(static_cast<int32_t>(dsgd::DType::kFloat16) == DSGD_FLOAT16);
static_assert(static_cast<int32_t>(dsgd::DType::kBfloat16) == DSGD_BFLOAT16);
static_assert(static_cast<int32_t>(dsgd::DType::kInt8) == DSGD_INT8);
static_assert(static_cast<int32_t>(dsgd::DType::kUint64) == DSGD_UINT64);
static_assert(static_cast<int32_t>(dsgd::Reduction::kSum) == DSGD_SUM);
static_assert(static_cast<int32_t>(dsgd::Reduction::kMin) == DSGD_MIN);
static_assert(static_cast<int32_t>(dsgd::Reduction::kMax) == DSGD_MAX);
static_assert(static_cast<int32_t>(dsgd::Reduction::kProd) == DSGD_PROD);
static_assert(static_cast<int32_t>(dsgd::Reduction::kMean) == DSGD_MEAN);

#define DSGD_TEXT_OF(number) #number
#define DSGD_TEXT(number) DSGD_TEXT_OF(number)

extern "C" {

uint32_t dsgd_version(void) { return DSGD_VERSION; }

const char* dsgd_version_string(void) {
  return DSGD_TEXT(DSGD_VERSION_MAJOR) "." DSGD_TEXT(DSGD_VERSION_MINOR) "." DSGD_TEXT(DSGD_VERSION_PATCH);
}

int32_t dsgd_capability(const char* name) {
  int32_t has = 0;
  dsgd::capi::guard(__func__, nullptr, [&](const dsgd::capi::Call&) -> dsgd::Status {
    if (name && std::string_view(name) == "cuda") has = dsgd::capi::load_cuda().ok();
    return {};
  });
  return has;
}

const char* dsgd_status_name(int32_t status) { return dsgd::code_name(static_cast<dsgd::Code>(status)); }

size_t dsgd_dtype_size(int32_t dtype) {
  return dsgd::valid_dtype(dtype) ? dsgd::dtype_size(static_cast<dsgd::DType>(dtype)) : 0;
}

}  // extern "C"

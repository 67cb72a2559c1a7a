// dsgd_error: an immutable copy of a Status in the host's hands.
#pragma once

#include <string>

#include "capi/src/handle.h"
#include "dsgd/dsgd.h"
#include "transport/base/status.h"

struct dsgd_error : dsgd::capi::HandleOf<dsgd_error> {
  static constexpr const char* kName = "dsgd_error";

  int32_t code = 0;
  int32_t rank = -1;
  std::string host, operation, parameter, message;
};

namespace dsgd::capi {

// Hands a failure to the host: *error gets a new error object where the host wants one. Returns the code.
int32_t give_error(const Status& status, dsgd_error** error) noexcept;
// Like give_error, for DSGD_ERR_NO_MEMORY; allocates nothing.
int32_t give_no_memory(dsgd_error** error) noexcept;

}  // namespace dsgd::capi

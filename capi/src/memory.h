// References to the buffers of dsgd_alloc.
#pragma once

#include <memory>

#include "capi/src/call.h"
#include "capi/src/handle.h"
#include "core/session/session.h"
#include "dsgd/dsgd.h"

struct dsgd_memory : dsgd::capi::HandleOf<dsgd_memory> {
  static constexpr const char* kName = "dsgd_memory";
  explicit dsgd_memory(std::shared_ptr<dsgd::TensorMemory> tensor) : tensor(std::move(tensor)) {}

  const std::shared_ptr<dsgd::TensorMemory> tensor;
};

namespace dsgd::capi {

// Returns the memory that dsgd_alloc made for this parameter in this replica; Code::kState if it was not
// called.
Result<std::shared_ptr<TensorMemory>> allocated_memory(const Call& call, dsgd_replica* replica,
                                                       dsgd_parameter* parameter);

}  // namespace dsgd::capi

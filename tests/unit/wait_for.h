// Waits for operations of a session of the C++ core.
#pragma once

#include <chrono>
#include <memory>

#include "core/session/session.h"

namespace dsgd {

// Waits until the operation of a call has ended. Returns its status, or that of the call if it was refused.
inline Status wait_for(Session& session, const Result<std::shared_ptr<Operation>>& call) {
  return call.ok() ? session.wait(*call.value(), std::chrono::milliseconds(-1)) : call.status();
}

}  // namespace dsgd

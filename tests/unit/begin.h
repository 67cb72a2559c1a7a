// Begins a collective of a session of the C++ core. If its call was refused, returns that status.
#pragma once

#include <memory>

#include "core/session/session.h"

namespace dsgd {

inline Result<std::shared_ptr<Operation>> begin(const Result<Session::Collective>& collective,
                                                Session::Mode mode) {
  return collective.ok() ? collective.value()(mode) : collective.status();
}

}  // namespace dsgd

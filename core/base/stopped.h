// Whether this process was stopped or suspended.
#pragma once

#include "transport/loop.h"

namespace dsgd {

// A timer for `due` fires. If that is more than half a lease late, this process did not run.
inline bool was_stopped(transport::Time due, transport::Time now, transport::Duration lease) {
  return now - due > lease / 2;
}

}  // namespace dsgd

// Whether this process was stopped or suspended.
#pragma once

#include "transport/loop.h"

namespace dsgd {

// Returns whether this process was stopped: a timer that was due at `due` fires at `now`, more than half a
// lease late.
inline bool was_stopped(transport::Time due, transport::Time now, transport::Duration lease) {
  return now - due > lease / 2;
}

}  // namespace dsgd

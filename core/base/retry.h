// Which failures of a dial or a join are worth another attempt, and when.
#pragma once

#include "transport/base/status.h"
#include "transport/loop.h"

namespace dsgd {

// Returns whether another attempt is pointless: the other side has refused, or nothing will change.
inline bool is_final(const Status& status) {
  switch (status.code()) {
    case Code::kUnreachable:
    case Code::kTimeout:
    case Code::kWorkerLost:  // the connection broke
    case Code::kClosed:
    case Code::kIo:
    case Code::kInternal:  // the answer was dropped: the head ended
      return false;
    default:
      return true;
  }
}

// Returns whether this error of a call or a dial says that the connection to the head has ended, or that
// there was none. Otherwise the head has answered: a status with a rank comes from it.
inline bool is_lost_connection(const Status& why) { return !why.ok() && !is_final(why) && why.rank() < 0; }

// Returns between half of `delay` and all of it, so that workers do not dial in step.
inline transport::Duration with_jitter(transport::Loop& loop, transport::Duration delay) {
  const auto half = static_cast<uint64_t>(delay.count()) / 2;
  return delay / 2 + transport::Duration(static_cast<int64_t>(loop.random() % (half + 1)));
}

}  // namespace dsgd

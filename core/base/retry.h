// Which failures of a dial or a join are worth another attempt.
#pragma once

#include "transport/base/status.h"

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

}  // namespace dsgd

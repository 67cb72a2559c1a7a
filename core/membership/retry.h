// Which failures of a dial or a join are worth another attempt.
#pragma once

#include "transport/base/status.h"

namespace dsgd {

// The other side said no, or nothing will change by asking again.
inline bool is_final(const Status& status) {
  switch (status.code()) {
    case Code::kUnreachable:
    case Code::kTimeout:
    case Code::kWorkerLost:  // the connection broke
    case Code::kClosed:
    case Code::kIo:
    case Code::kInternal:  // the answer was dropped: the head went away
      return false;
    default:
      return true;
  }
}

}  // namespace dsgd

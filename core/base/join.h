// Several asynchronous operations as one.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "transport/base/status.h"

namespace dsgd {

// Returns a callback for the ends of `count` operations (at least one). Its last call passes the first
// failure to `done`. One thread.
inline std::function<void(const Status&)> join(size_t count, std::function<void(const Status&)> done) {
  struct Left {
    size_t count;
    Status failure;
    std::function<void(const Status&)> done;
  };
  return [left = std::make_shared<Left>(Left{count, {}, std::move(done)})](const Status& status) {
    if (!status.ok() && left->failure.ok()) left->failure = status;
    if (--left->count == 0) left->done(left->failure);
  };
}

}  // namespace dsgd

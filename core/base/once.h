// A callback that passes on its first call only.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "transport/base/status.h"

namespace dsgd {

// Returns a callback that passes its first call on to `done`, and ignores later ones. One thread.
inline std::function<void(const Status&)> once(std::function<void(const Status&)> done) {
  return
      [left = std::make_shared<std::function<void(const Status&)>>(std::move(done))](const Status& status) {
        if (const auto first = std::exchange(*left, nullptr)) first(status);
      };
}

}  // namespace dsgd

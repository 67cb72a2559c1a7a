// The place of a chunk that arrives.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>

#include "transport/network.h"

namespace dsgd {

// destination[i] (op)= source[i], in elements
using Add = std::function<void(void* destination, const void* source, size_t count)>;

struct Landing {
  std::byte* place = nullptr;      // null: the chunk comes too early
  const Add* add = nullptr;        // adds it to what is there; null: it is copied
  size_t element = 1;              // bytes, for `add`
  std::function<void()> landed{};  // called when the chunk is in its place
  // Called with a chunk that comes too early, once it is complete. Its receipt is finished later.
  std::function<void(std::unique_ptr<transport::BulkReceipt>)> keep{};

  void take(size_t offset, std::span<const std::byte> piece) const {
    if (add) {
      (*add)(place + offset, piece.data(), piece.size() / element);
    } else {
      std::memcpy(place + offset, piece.data(), piece.size());
    }
  }
};

}  // namespace dsgd

// Where and how an arriving chunk is written.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>

#include "transport/network.h"

namespace dsgd {

// Combines `count` elements of `source` into `destination`: reduces or converts them.
using Combine = std::function<void(void* destination, const void* source, size_t count)>;

struct Landing {
  std::byte* destination = nullptr;  // null: the task takes the whole chunk by `keep`
  const Combine* combine = nullptr;  // null: the chunk is copied
  size_t element = 1;                // bytes of an element of the chunk, for `combine`
  size_t widening = 1;               // bytes at the destination for each byte of the chunk
  std::function<void()> landed{};    // called when the chunk is written
  // Called with the complete chunk if it has no destination: it comes too early, or is small. The task
  // finishes the receipt, now or later.
  std::function<void(std::unique_ptr<transport::BulkReceipt>)> keep{};

  void write(size_t offset, std::span<const std::byte> piece) const {
    if (combine) {
      (*combine)(destination + offset * widening, piece.data(), piece.size() / element);
    } else {
      std::memcpy(destination + offset, piece.data(), piece.size());
    }
  }
};

}  // namespace dsgd

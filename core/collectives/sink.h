// Where a chunk that is arriving goes: to its place, or added to what is there.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <span>

#include "core/mesh/task.h"

namespace dsgd {

// destination[i] (op)= source[i], in elements
using Add = std::function<void(void* destination, const void* source, size_t count)>;

class Sink final : public transport::BulkSink {
 public:
  Landing landing;
  void copy_to(std::byte* place) { place_ = place, add_ = nullptr; }
  void add_to(std::byte* place, size_t element, const Add& add) {
    place_ = place, element_ = element, add_ = &add;
  }
  std::byte* place(size_t offset, size_t) override { return add_ ? nullptr : place_ + offset; }
  void take(size_t offset, std::span<const std::byte> piece) override {
    if (add_) {
      (*add_)(place_ + offset, piece.data(), piece.size() / element_);
    } else {
      std::memcpy(place_ + offset, piece.data(), piece.size());
    }
  }

 private:
  std::byte* place_ = nullptr;
  size_t element_ = 1;
  const Add* add_ = nullptr;  // null: copied
};

}  // namespace dsgd

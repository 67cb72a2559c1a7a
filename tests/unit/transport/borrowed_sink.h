// A channel's handle of a sink that the test owns.
#pragma once

#include <functional>
#include <span>
#include <utility>

#include "transport/network.h"

namespace dsgd::transport {

// Target has destination() and take() of BulkSink.
template <typename Target>
class BorrowedSink final : public BulkSink {
 public:
  BorrowedSink(Target& target, std::function<void()> landed) : target_(target), landed_(std::move(landed)) {}
  std::byte* destination(size_t offset, size_t n) override { return target_.destination(offset, n); }
  void take(size_t offset, std::span<const std::byte> piece) override { target_.take(offset, piece); }
  void landed() override { landed_(); }

 private:
  Target& target_;
  const std::function<void()> landed_;
};

}  // namespace dsgd::transport

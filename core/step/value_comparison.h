// Digests of this worker's values, by which workers find out whether their models are equal: a part of the
// values in each step's header; all of them when no worker has data left, when a header's part differs, and
// when the session closes (divergence.h names the parameter).
//
// Each step compares 1/K of the values, in turn: a silent divergence is found within K steps for 1/K of a
// pass over the values. K is 64, or larger where a step would compare more than 4 MiB: a device copies them
// to the host before the header goes out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/device/waiter.h"
#include "core/reduce/value_digest.h"
#include "core/step/sum_list.h"

namespace dsgd {

class ValueComparison {
 public:
  static constexpr uint64_t kLeastParts = 64;
  static constexpr size_t kPartBytes = 4 << 20;
  // K for values of `nbytes` bytes, with half types as float32. All workers have the same model, and thus the
  // same K.
  static uint64_t parts_of(size_t nbytes) {
    return std::max<uint64_t>(kLeastParts, (nbytes + kPartBytes - 1) / kPartBytes);
  }

  ValueComparison(StepState& state, transport::Loop& loop, device::Waiter& waiter)
      : state_(state), loop_(loop), waiter_(waiter) {}
  // Sets K and, unless replica 0 is on the host, allocates memory for a part. Later plans change neither,
  // unless the model has changed since a dsgd_start that failed.
  Status make_buffers();
  uint64_t part_of(uint64_t step) const { return step % parts_; }
  // Calls `then` when digest(part) can be computed: at once if replica 0 is on the host. A failure is the
  // device's.
  void fetch(uint64_t part, transport::Time deadline, std::function<void(const Status&)> then);
  uint64_t digest(uint64_t part) const;
  // Digests all values and gives `then` the digests, folded. A failure is the device's. Takes a task of the
  // loop for each part, so that the loop goes on meanwhile. Another call drops the one under way.
  void digest_all(transport::Time deadline, std::function<void(const Status&, std::vector<uint64_t>)> then);
  void stop() { digests_.reset(); }  // drops digest_all() and its `then`

 private:
  std::pair<size_t, size_t> range(const Parameter& parameter, uint64_t part) const;
  void add(ValueDigest& digest, size_t parameter, uint64_t part) const;
  void digest_from(uint64_t part, transport::Time deadline,
                   std::function<void(const Status&, std::vector<uint64_t>)> then);
  Status enqueue_fetch(uint64_t part);
  bool on_host() const { return state_.context_of(0).is_host(); }

  StepState& state_;
  transport::Loop& loop_;
  device::Waiter& waiter_;
  uint64_t parts_ = kLeastParts;
  SumList values_;
  // Values of a part, gathered, where replica 0 is not on the host.
  Memory device_values_, host_values_;
  std::unique_ptr<device::DeviceEvent> fetched_;  // behind their copy, and so behind what the host computes
  std::vector<size_t> offsets_;                   // in these, by parameter, bytes; the last is the size
  // By parameter, during digest_all(), whose tasks end with it.
  std::shared_ptr<std::vector<std::unique_ptr<ValueDigest>>> digests_;
};

}  // namespace dsgd

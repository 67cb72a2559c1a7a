// A device that this worker has replicas on, with the queues and events that steps use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/device/device.h"
#include "core/model/model.h"
#include "transport/base/status.h"

namespace dsgd {

inline constexpr size_t kStagingBytes = 1 << 20;

struct DeviceContext {
  std::shared_ptr<device::Device> device;
  std::vector<uint32_t> replicas;            // in order
  std::unique_ptr<device::WorkQueue> queue;  // used on the session's loop only, as are the next two
  // Of a device that is not the host: copies to the host and from it. They run beside each other and beside
  // the work of `queue`.
  std::unique_ptr<device::WorkQueue> to_host, from_host;
  std::unique_ptr<device::DeviceEvent> enqueued;  // in the host's default stream
  // In the queue, behind the last update, after each public function.
  std::unique_ptr<device::DeviceEvent> reached;
  std::unique_ptr<device::DeviceEvent> last_use;  // in the queue, behind the last use of unbound buffers
  // Where all workers update alike and the device is not the host.
  OptimizerState state;
  // Where the view may change and the device is not the host, for streams of state (staging_queue.h).
  std::unique_ptr<device::WorkQueue> reader;    // copies values and state to the host
  std::shared_ptr<void> staging, scratch;       // kStagingBytes each: pinned memory of the host, the device's
  std::unique_ptr<device::DeviceEvent> staged;  // behind the last staged work
  bool is_host() const { return device->is_host(); }
  // Work enqueued in the queue, or in the reader, from now on happens after the work that the host has put
  // into its default stream.
  Status follow_default_stream() { return follow_default_stream(*queue); }
  Status read_after_default_stream() { return follow_default_stream(*reader); }
  // Work enqueued in the queue from now on happens after the copies that are enqueued now.
  Status follow_copies();
  // Work enqueued in `queue`, `to_host` or `from_host` from now on happens after all that is in these.
  Status align();

 private:
  Status follow_default_stream(device::WorkQueue& behind);
  Status follow(device::WorkQueue& behind, device::WorkQueue& before);
};

// Returns a context without replicas, with `queue` but no queues for copies.
Result<DeviceContext> open_context(std::shared_ptr<device::Device> device);
// Returns a context for each device of the model's replicas: the host first, the others in the order of their
// first replicas.
Result<std::vector<DeviceContext>> make_contexts(const Model& model, bool views_change);

// Zeroed memory of the host whose pages cost nothing until they are touched: an owner of some ranges touches
// only those.
std::shared_ptr<void> untouched_memory(size_t nbytes);

}  // namespace dsgd

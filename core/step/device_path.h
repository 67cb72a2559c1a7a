// The work of a step on devices that are not the host: they add up the gradients of their own replicas, which
// then go to the host, and results come back. All of it is enqueued; the step waits where it must.
#pragma once

#include <cstddef>
#include <functional>

#include "core/device/waiter.h"
#include "core/step/sum_list.h"

namespace dsgd {

class DevicePath {
 public:
  DevicePath(StepState& state, device::Waiter& waiter) : state_(state), waiter_(waiter) {}
  // Orders this step's work behind the last step's.
  Status begin_step();
  // The step changed nothing, so its copies may still be in progress when the next one begins.
  void note_step_skipped() { previous_step_skipped_ = true; }
  // Orders a bucket's work behind the work in the host's streams, then calls `then`: at once, unless the host
  // is capturing a graph.
  void follow_streams(size_t bucket, std::function<void(const Status&)> then);
  // Enqueues the sums of a bucket and, unless they stay on the devices, their copies to the host; when
  // reproducible, the copies of its gradients. Copies the values that this owner updates, too. Call it after
  // follow_streams().
  Status fetch(size_t bucket, size_t context);
  // Calls `fetched` when what fetch() copies is on the host from all devices; `failed` for each device that
  // fails.
  void when_fetched(size_t bucket, std::function<void()> fetched, std::function<void(const Status&)> failed);
  // A bucket's results, to the devices: as soon as they are final, while other buckets still travel.
  Status return_results(size_t bucket);
  // The sums of squares of a bucket's sums. All devices have the same sums; the first one computes with them.
  Status add_squares(size_t bucket);
  double norm() const;  // of all buckets, once add_squares() is done
  // Orders the new values before all work that the host enqueues from now on into its default stream and into
  // the streams on which it marked gradients. Code::kState: one of them cannot be used now, since the host is
  // capturing a graph; the step then has to end behind the update.
  Status order_streams_after_update();
  // Calls `then` when the work in the queues of all contexts has ended, or with an error after the deadline.
  void when_queues_done(transport::Time deadline, std::function<void(const Status&)> then);
  // Calls `then` when all that was enqueued in the contexts, copies included, has ended. No deadline.
  // `waiter` is not the step's, which drops its waits when a step fails.
  void when_devices_done(device::Waiter& waiter, std::function<void(const Status&)> then);

 private:
  Status follow_streams(size_t bucket, DeviceContext& context);
  Status fetch_values(size_t bucket, size_t context);
  Status sum(size_t bucket, size_t context);  // as listed in sums_; with the check, if there is one

  StepState& state_;
  device::Waiter& waiter_;
  SumList sums_;
  std::vector<device::SquarePiece> square_pieces_;
  bool previous_step_skipped_ = false;
};

}  // namespace dsgd

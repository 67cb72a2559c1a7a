// Steps of teams (teams.h): the devices of a team add up a bucket among themselves, and gather the results.
// All members begin the same collectives in the same order: first the sums of all buckets, then what is
// gathered of them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "core/device/collective_queue.h"
#include "core/step/device_path.h"
#include "core/step/host_path.h"

namespace dsgd {

class TeamPath {
 public:
  // Called on the loop. A success after the end of the step is dropped; an error is always reported.
  using Done = std::function<void(const Status&)>;

  TeamPath(StepState& state, HostPath& host, DevicePath& devices)
      : state_(state), host_(host), devices_(devices) {}
  // Of this worker's devices; null: they are in no team.
  void use(std::unique_ptr<device::CollectiveQueue> queue) {
    queue_ = std::move(queue);
    state_.collectives = queue_.get();
  }
  // Reduces a bucket over the team's devices. Unless the sums stay there, this worker's part goes to the
  // host. `enqueued`, unless it is empty, is called when the sums are in the devices' queues.
  Status reduce(size_t bucket, Done done, std::function<void()> enqueued = {});
  // Brings this worker's part of the results to its devices, which gather those of the team.
  void gather(size_t bucket, Done done);
  // Aborts what is in flight, on the devices too. All later work fails.
  void fail(const Status& cause) {
    if (queue_) queue_->fail(cause);
  }
  void close() {
    if (queue_) queue_->close();
  }

 private:
  Status add_trailers(size_t bucket, size_t context);
  void fetch_trailers(size_t bucket, device::Communicator::Work* work);
  device::Communicator::Work work_on(size_t bucket, device::Collective collective);
  std::vector<device::CollectiveCopy> part_copies(size_t bucket, bool to_devices);
  void enqueue(const device::Communicator::Work& work, Done done, std::function<void()> enqueued = {});

  StepState& state_;
  HostPath& host_;
  DevicePath& devices_;
  SumList sums_;
  std::unique_ptr<device::CollectiveQueue> queue_;
};

}  // namespace dsgd

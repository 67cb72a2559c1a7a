// A communicator as a step uses it: its callbacks come on the loop.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/device/device.h"
#include "transport/loop.h"
#include "transport/poster.h"

namespace dsgd::device {

// Loop only. The destructor may run on another thread, after close(); it aborts work in flight.
class CollectiveQueue {
 public:
  using Done = std::function<void(const Status&)>;
  // `devices`: of this process, of one backend, in the order of their ranks.
  CollectiveQueue(transport::Loop& loop, std::vector<std::shared_ptr<Device>> devices)
      : loop_(loop), devices_(std::move(devices)), poster_(std::make_shared<transport::Poster>(loop)) {}

  // Call it first, once. `done` comes from the loop when all members have joined, or within this call if
  // joining cannot begin.
  void join(const CommunicatorId& id, int32_t first, int32_t size, transport::Time deadline, Done done) {
    auto joined = Device::join(devices_, id, first, size, deadline - loop_.now(), on_loop(done));
    if (!joined.ok()) return done(joined.status());
    communicator_ = std::move(joined).value();
  }
  // See Communicator; after join().
  Result<std::vector<std::shared_ptr<void>>> allocate(size_t nbytes) {
    return communicator_->allocate(nbytes);
  }
  // `done` comes from the loop, when the work has ended on the devices of this process. After the first
  // failure all fail. `enqueued`, unless it is empty, comes from the loop before, when the work is in the
  // devices' queues.
  void enqueue(const Communicator::Work& work, transport::Time deadline, Done done,
               std::function<void()> enqueued = {}) {
    std::function<void()> on_enqueued;
    if (enqueued)
      on_enqueued = [poster = poster_, enqueued = std::move(enqueued)] { poster->post(enqueued); };
    communicator_->enqueue(work, deadline - loop_.now(), on_loop(std::move(done)), std::move(on_enqueued));
  }
  // Aborts all work in flight, also on the devices. Later work fails.
  void fail(const Status& cause) {
    if (communicator_) communicator_->fail(cause);
  }
  // No `done` comes any more, and the loop may end.
  void close() { poster_->close(); }

 private:
  Communicator::Ended on_loop(Done done) {
    return [poster = poster_, done = std::move(done)](const Status& status) {
      poster->post([done, status] { done(status); });
    };
  }

  transport::Loop& loop_;
  const std::vector<std::shared_ptr<Device>> devices_;
  const std::shared_ptr<transport::Poster> poster_;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace dsgd::device

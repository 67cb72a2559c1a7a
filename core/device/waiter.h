// Runs a callback on a loop when a device has passed an event, or when a stream of the host's can be used
// again. The device posts to the loop. A timer checks for devices that have failed, which do not post, and
// for those that are late.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "core/device/device.h"
#include "transport/loop.h"

namespace dsgd::device {

// Loop only.
class Waiter {
 public:
  explicit Waiter(transport::Loop& loop);
  ~Waiter() { close(); }
  Waiter(const Waiter&) = delete;

  // Records `event` behind the work in `queue` and calls `then` when that work has ended, has failed, or has
  // not ended by the deadline: within this call if it is known already, as on the host, else from the loop.
  // Keep the event until then. `name` is the device's, for messages.
  void after(const std::string& name, WorkQueue& queue, DeviceEvent& event, transport::Time deadline,
             std::function<void(const Status&)> then);
  // Calls `then` when `event`, recorded in a stream of the host's, is done, has failed, or is not done by the
  // deadline; else as after(). Nothing is enqueued: a wait for the event would hold up other queues, too,
  // since CUDA has more streams than hardware queues.
  void when_done(const std::string& name, DeviceEvent& event, transport::Time deadline,
                 std::function<void(const Status&)> then);
  // Calls `attempt`, which uses streams of the host's, again and again while it returns Code::kState, as it
  // does while the host captures a graph. Then calls `then` with its status, or with Code::kTimeout after the
  // deadline; within this call if the first attempt decides. Attempts run in the order of these calls.
  void when_usable(transport::Time deadline, std::function<Status()> attempt,
                   std::function<void(const Status&)> then);
  // Ends all waits with `cause`.
  void fail(const Status& cause);
  // Drops all waits and releases the loop, which may end before this object. No wait may be added afterwards.
  void close();

 private:
  struct Anchor;
  struct Waiting {
    std::string name;
    DeviceEvent* event;
    transport::Time deadline;
    std::function<void(const Status&)> then;
    bool notifies = true;  // the device does when the event is done
  };
  struct Attempt {
    transport::Time deadline;
    std::function<Status()> attempt;
    std::function<void(const Status&)> then;
  };
  struct Ended {
    std::function<void(const Status&)> then;
    Status status;
  };
  void poll();
  void try_attempts();
  void end(std::list<Ended> ended);
  void schedule_poll();

  transport::Loop& loop_;
  std::shared_ptr<Anchor> anchor_;
  std::list<Waiting> waiting_;
  transport::TimerId timer_ = 0;
  transport::Time poll_at_{};  // while timer_ is set
  std::list<Attempt> attempts_;
  bool trying_ = false;
  transport::TimerId retry_ = 0;
};

}  // namespace dsgd::device

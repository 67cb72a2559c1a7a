// Goes on, on a loop, when devices have come to a mark. The loop is rung by the device, so nobody polls; a timer looks now and
// then for devices that have failed, which do not ring, and for those that are late.
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

  // Records `mark` behind what was entered into `queue` and calls `then` when that is done, has failed, or is not done by the
  // deadline: from within this call if it is known already, as on the host, else from the loop. The mark stays until then.
  // `name` is the device's, for messages.
  void after(const std::string& name, WorkQueue& queue, Mark& mark, transport::Time deadline,
             std::function<void(const Status&)> then);
  // All that is waited for has failed.
  void fail(const Status& cause);
  // Forgets what is waited for, and lets go of the loop, which may end before this does. Nothing may be waited for any more.
  void close();

 private:
  struct Bell;
  struct Waiting {
    std::string name;
    Mark* mark;
    transport::Time deadline;
    std::function<void(const Status&)> then;
  };
  void look();
  void end(std::list<Waiting> over, std::list<Status> how);
  void look_later();

  transport::Loop& loop_;
  std::shared_ptr<Bell> bell_;
  std::list<Waiting> waiting_;
  transport::TimerId timer_ = 0;
};

}  // namespace dsgd::device

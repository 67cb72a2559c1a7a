// Runs calls that may block for ever, for example on a device that the host keeps busy: in order, on a thread
// of their own. The caller waits for a bounded time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace dsgd::transport {

// Any thread. Destruction does not wait for a late call; it and the calls behind it still run later, on the
// thread.
class BoundedCalls {
 public:
  BoundedCalls();
  ~BoundedCalls();
  BoundedCalls(const BoundedCalls&) = delete;
  // Returns true when `call` has ended. Returns false if it, or one before it, has not ended within
  // `timeout`; it still runs later. Called from within a call: queues `call` and returns true at once.
  bool run(std::chrono::nanoseconds timeout, std::function<void()> call);
  bool late() const;  // has a call for which run() returned false still not ended?

 private:
  struct State;
  const std::shared_ptr<State> state_;  // the thread's, too
};

}  // namespace dsgd::transport

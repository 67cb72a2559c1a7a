// Calls that may wait for something for ever, such as a device that the host keeps busy: made by a thread of their own, in order,
// and awaited for a bounded time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace dsgd::transport {

// Any thread. Its end waits for nothing that is late: such calls, and those behind them, are made as soon as that lets them.
class BoundedCalls {
 public:
  BoundedCalls();
  ~BoundedCalls();
  BoundedCalls(const BoundedCalls&) = delete;
  // True: `call` has been made. False: it has not ended within `patience`, or one before it has not; it will be made all the same.
  // From within a call: true, and it is made after that.
  bool run(std::chrono::nanoseconds patience, std::function<void()> call);
  bool late() const;  // is one that was awaited still not made?

 private:
  struct State;
  const std::shared_ptr<State> state_;  // the thread's, too
};

}  // namespace dsgd::transport

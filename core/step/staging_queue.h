// A queue of work that uses the contexts' staging memory beside the steps: copies between the replicas'
// devices and streams of state (state_stream.h). One piece of work runs at a time. Where no device takes part
// it is done at once.
//
// Reads use the context's `reader`, since the queue of the steps may be waiting for a result of the host.
// Those of state follow the last update of a step (DeviceContext::reached), and the next update follows them
// (DeviceContext::staged). Digests follow the host's default stream.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "core/device/waiter.h"
#include "core/model/model.h"
#include "core/step/step.h"
#include "transport/loop.h"

namespace dsgd {

// Loop only.
class StagingQueue {
 public:
  using Enqueue = std::function<Status()>;
  using Then = std::function<void(const Status&)>;

  StagingQueue(transport::Loop& loop, Step& step) : step_(step), waiter_(loop) {}
  // Calls `enqueue` when all earlier work has ended, and `then` when the devices have done what it has
  // enqueued, when that has failed, or after the deadline. The staging memory may still be in use then, so
  // the session must fail. Either may be called within this call. read() waits for the first context's
  // reader, write() for the queues of all contexts.
  void read(Enqueue enqueue, Then then) {
    run({std::move(enqueue), std::move(then), true, transport::kNever});
  }
  void write(transport::Time deadline, Enqueue enqueue, Then then) {
    run({std::move(enqueue), std::move(then), false, deadline});
  }
  // Calls `then` when all earlier work has ended, or with an error after the deadline.
  void when_done(transport::Time deadline, Then then) {
    write(deadline, [] { return Status(); }, std::move(then));
  }
  // Ends all waits of a session that ends. Devices may still use the staging memory.
  void fail(const Status& why);
  void close() { waiter_.close(); }  // releases the loop

  // Gives `then` a digest of the values of these elements of all trained parameters, as the first context has
  // them behind the host's default stream.
  void digest_values(const Model& model, uint64_t begin, uint64_t end,
                     std::function<void(Result<uint64_t>)> then);

 private:
  struct Work {
    Enqueue enqueue;
    Then then;
    bool reads;
    transport::Time deadline;
  };
  struct Digest;

  void run(Work work);
  void run_waiting();
  void wait(const Work& work, Then then);
  void digest_next(const std::shared_ptr<Digest>& digest);

  Step& step_;
  device::Waiter waiter_;
  std::deque<Work> waiting_;
  bool busy_ = false, running_ = false;
};

}  // namespace dsgd

#include "core/device/cuda/communicator_thread.h"

#include <algorithm>

#include "core/device/cuda/errors.h"

namespace dsgd::device {
namespace cuda {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(1);  // between two polls for the failure of others
// A call of NCCL's is polled without sleeping for this time, since most end within it, then in this interval.
constexpr auto kSpinTime = std::chrono::microseconds(100), kCallPollInterval = kSpinTime;
constexpr auto kFinalize = std::chrono::milliseconds(500);  // the others may not be there any more

CommDelay delay_of(Collective collective) {
  constexpr const char* kNotEnded = "has not ended";
  switch (collective) {
    case Collective::kAllReduce:
      return {"the all-reduce", kNotEnded};
    case Collective::kReduceScatter:
      return {"the reduce-scatter", kNotEnded};
    case Collective::kAllGather:
      return {"the all-gather", kNotEnded};
  }
  return {};
}

struct Notice {
  std::shared_ptr<CommShared> shared;
  size_t device;
  uint64_t number;
};

}  // namespace
}  // namespace cuda

Comm::~Comm() {
  {
    std::lock_guard lock(shared->mutex);
    ending = true;
    shared->changed.notify_all();
  }
  if (thread.joinable()) thread.join();
}

void Comm::enqueue(cuda::CommWork item) {
  std::unique_lock lock(shared->mutex);
  if (failure.code != 0) {
    const cuda::CommFailure why = failure;
    lock.unlock();
    return item.ended(item.context, why.code, why.text.c_str());
  }
  waiting.push_back(std::move(item));
  shared->changed.notify_all();
}

void Comm::fail(cuda::CommFailure why) {
  std::lock_guard lock(shared->mutex);
  if (failure.code == 0) failure = std::move(why);
  shared->changed.notify_all();
}

void Comm::run() {
  std::unique_lock lock(shared->mutex);
  while (!ending && failure.code == 0) {
    shared->notified = false;
    if (has_unused() && enqueued.empty()) {
      deregister(lock, false);
    } else if (!waiting.empty()) {
      cuda::CommWork item = std::move(waiting.front());
      waiting.pop_front();
      lock.unlock();
      begin(std::move(item));
      lock.lock();
    } else if (enqueued.empty()) {
      shared->changed.wait(
          lock, [this] { return ending || failure.code != 0 || !waiting.empty() || has_unused(); });
    } else {
      lock.unlock();
      const bool progress = poll_oldest();
      lock.lock();
      if (progress) continue;
      shared->changed.wait_for(lock, cuda::kPollInterval, [this] {
        return shared->notified || ending || failure.code != 0 || !waiting.empty();
      });
    }
  }
  const bool clean = failure.code == 0 && enqueued.empty() && waiting.empty();
  // Work ends before the wait for the devices, because they may wait for a host stream that never ends. NCCL
  // may still put a collective into the queues until the abort returns: its work must not end before that.
  if (clean) {
    deregister(lock, true);
  } else {
    if (launch_unfinished) {
      lock.unlock();
      ranks.reset();
      lock.lock();
    }
    fail_all(lock);
  }
  lock.unlock();
  Message ignored;
  finalizing = true;
  if (ranks && clean && ranks->finalize(&ignored) == 0)
    (void)wait_for_nccl(Clock::now() + cuda::kFinalize, {"the communicator", "was not finalized"}, &ignored);
  ranks.reset();  // aborts what is in flight, so that the devices let go of it
  for (Queue* queue : queues) cuda::queue_close(queue);
  lock.lock();
  fail_all(lock);
  shared->thread_ended = true;
  shared->changed.notify_all();
}

// Fails all work, also what is enqueued later.
void Comm::fail_all(std::unique_lock<std::mutex>& lock) {
  if (failure.code == 0) failure = {static_cast<int32_t>(Code::kClosed), "the session is closed"};
  const cuda::CommFailure why = failure;
  std::deque<cuda::CommWork> left = std::move(enqueued);
  enqueued.clear();
  for (cuda::CommWork& item : waiting) left.push_back(std::move(item));
  waiting.clear();
  lock.unlock();
  for (const cuda::CommWork& item : left) item.ended(item.context, why.code, why.text.c_str());
  lock.lock();
}

void Comm::begin(cuda::CommWork item) {
  Message message{};
  if (!ranks) {
    const int32_t code = join(item.until, &message);
    if (code != 0) fail({code, message.text});
    return item.ended(item.context, code, message.text);
  }
  item.number = ++last;
  const int32_t code = enqueue_now(item, &message);
  if (code == 0 && item.work.enqueued) item.work.enqueued(item.context);
  enqueued.push_back(std::move(item));
  if (code != 0) fail({code, message.text});
}

int32_t Comm::join(Clock::time_point until, Message* message) {
  (void)cudaSetDevice(devices.front()->index);  // of this thread, where only work on these devices is done
  for (DeviceHandle* device : devices) {
    Queue* queue = nullptr;
    if (const int32_t code = cuda::queue_open(device, &queue, message)) return code;
    queues.push_back(queue);
  }
  auto made = std::make_unique<cuda::NcclRanks>(devices, first, size);
  if (const int32_t code = made->init(id, message)) return code;
  ranks = std::move(made);
  return wait_for_nccl(until, {"the communicator", "was not created"}, message);
}

int32_t Comm::enqueue_now(const cuda::CommWork& item, Message* message) {
  const CollectiveWork& work = item.work;
  int32_t code = 0;
  const auto copy_all = [&](const std::vector<CollectiveCopy>& copies) {
    for (const CollectiveCopy& copy : copies) {
      if (code == 0) code = cuda::copy(queues[copy.device], copy.to, copy.from, copy.nbytes, message);
    }
  };
  code = register_new(item.until, message);
  for (size_t d = 0; d < item.wait_for.size() && code == 0; ++d)
    code = cuda::queue_wait(queues[d], item.wait_for[d], message);
  copy_all(item.copies_before);
  if (code == 0) {
    launch_unfinished = true;
    code =
        ranks->enqueue(work.collective, work.dtype, item.buffers.data(), work.count, queues.data(), message);
  }
  // Only then is it in the queues, and something else can be put behind it.
  if (code == 0) code = wait_for_nccl(item.until, cuda::delay_of(work.collective), message);
  if (code == 0) launch_unfinished = false;
  copy_all(item.copies_after);
  for (size_t d = 0; d < queues.size() && code == 0; ++d) {
    code = cuda::event_record(item.done_events[d], queues[d], message);
    if (code == 0) code = notify_when_completed(d, item.number, message);
  }
  return code;
}

int32_t Comm::notify_when_completed(size_t device, uint64_t number, Message* message) {
  auto context = std::make_unique<cuda::Notice>(cuda::Notice{shared, device, number});
  const int32_t code = cuda::queue_notify(
      queues[device],
      [](void* context) {
        const std::unique_ptr<cuda::Notice> notice(static_cast<cuda::Notice*>(context));
        std::lock_guard lock(notice->shared->mutex);
        notice->shared->completed[notice->device] = notice->number;
        notice->shared->notified = true;
        notice->shared->changed.notify_all();
      },
      context.get(), message);
  if (code == 0) (void)context.release();  // the callback deletes it
  return code;
}

// Ends the oldest work if it has completed, or fails all. Returns whether it has done either.
bool Comm::poll_oldest() {
  const cuda::CommWork& oldest = enqueued.front();
  Message message{};
  int32_t code = 0;
  // Work is counted by its number, since later work may have recorded its events again. They are queried for
  // errors only.
  bool completed;
  {
    std::lock_guard lock(shared->mutex);
    completed = std::all_of(shared->completed.begin(), shared->completed.end(),
                            [&](uint64_t number) { return number >= oldest.number; });
  }
  for (Event* event : oldest.done_events) {
    if (cuda::event_query(event, &message) == EventState::kFailed)
      code = static_cast<int32_t>(Code::kInternal);
  }
  // NCCL is asked last: it may report that a peer has failed although the devices have completed the work.
  bool done = false;
  if (code == 0) code = ranks->poll(&done, &message);
  if (code == 0 && !completed && Clock::now() >= oldest.until)
    code = time_out(cuda::delay_of(oldest.work.collective), &message);
  if (code != 0) {
    fail({code, message.text});
    return true;
  }
  if (!completed) return false;
  const cuda::CommWork ended = std::move(enqueued.front());
  enqueued.pop_front();
  ended.ended(ended.context, 0, "");
  return true;
}

int32_t Comm::wait_for_nccl(Clock::time_point until, const cuda::CommDelay& what, Message* message) {
  const Clock::time_point begun = Clock::now();
  for (;;) {
    bool done = false;
    if (const int32_t code = ranks->poll(&done, message); code != 0 || done) return code;
    const Clock::time_point now = Clock::now();
    if (now >= until) return time_out(what, message);
    std::unique_lock lock(shared->mutex);
    if (failure.code != 0)
      return cuda::fail(message, static_cast<Code>(failure.code), "%s", failure.text.c_str());
    if (ending && !finalizing) return cuda::fail(message, Code::kClosed, "the session is closed");
    if (now - begun < cuda::kSpinTime) {
      lock.unlock();
      std::this_thread::yield();
    } else {
      shared->changed.wait_for(lock, cuda::kCallPollInterval);
    }
  }
}

int32_t Comm::time_out(const cuda::CommDelay& what, Message* message) const {
  return cuda::fail(message, Code::kTimeout, "cuda:%d: %s over %d devices %s in time", devices.front()->index,
                    what.subject, size, what.predicate);
}

}  // namespace dsgd::device

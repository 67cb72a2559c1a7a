#include "core/device/cuda/communicator_thread.h"

#include <algorithm>

namespace dsgd::device {
namespace cuda {
namespace {

constexpr auto kLook = std::chrono::milliseconds(1);  // between two looks for the failure of others
// How long a call that begins is polled without sleeping.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr auto kFinalize = std::chrono::milliseconds(500);  // the others may not be there any more

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all-reduce";
    case Collective::kReduceScatter:
      return "reduce-scatter";
    case Collective::kAllGather:
      return "all-gather";
  }
  return "";
}

struct Notice {
  std::shared_ptr<CommWakeup> wakeup;
  size_t device;
  uint64_t number;
};

}  // namespace
}  // namespace cuda

Comm::~Comm() {
  {
    std::lock_guard lock(wakeup->mutex);
    ending = true;
    wakeup->changed.notify_all();
  }
  if (thread.joinable()) thread.join();
}

void Comm::enqueue(cuda::CommWork item) {
  std::unique_lock lock(wakeup->mutex);
  if (failure.code != 0) {
    const cuda::CommFailure why = failure;
    lock.unlock();
    return item.ended(item.context, why.code, why.text.c_str());
  }
  waiting.push_back(std::move(item));
  wakeup->changed.notify_all();
}

void Comm::fail(cuda::CommFailure why) {
  std::lock_guard lock(wakeup->mutex);
  if (failure.code == 0) failure = std::move(why);
  wakeup->changed.notify_all();
}

void Comm::run() {
  std::unique_lock lock(wakeup->mutex);
  while (!ending && failure.code == 0) {
    wakeup->notified = false;
    if (has_unused() && enqueued.empty()) {
      deregister(lock, false);
    } else if (!waiting.empty()) {
      cuda::CommWork item = std::move(waiting.front());
      waiting.pop_front();
      lock.unlock();
      begin(std::move(item));
      lock.lock();
    } else if (enqueued.empty()) {
      wakeup->changed.wait(
          lock, [this] { return ending || failure.code != 0 || !waiting.empty() || has_unused(); });
    } else {
      lock.unlock();
      const bool progress = look();
      lock.lock();
      if (progress) continue;
      wakeup->changed.wait_for(lock, cuda::kLook, [this] {
        return wakeup->notified || ending || failure.code != 0 || !waiting.empty();
      });
    }
  }
  const bool good_order = failure.code == 0 && enqueued.empty() && waiting.empty();
  // Work ends before the wait for the devices, because they may wait for a host stream that never ends. NCCL
  // may still put a collective into the queues until the abort returns: its work must not end before that.
  if (good_order) {
    deregister(lock, true);
  } else {
    if (launching) {
      lock.unlock();
      ranks.reset();
      lock.lock();
    }
    break_off(lock);
  }
  lock.unlock();
  Message ignored;
  if (ranks && good_order && ranks->finalize(&ignored) == 0) {
    (void)wait_until_over(Clock::now() + cuda::kFinalize, true, "end", &ignored);
  }
  ranks.reset();  // aborts what is in flight, so that the devices let go of it
  for (Queue* queue : queues) cuda::queue_close(queue);
  lock.lock();
  break_off(lock);
  wakeup->over = true;
  wakeup->changed.notify_all();
}

// Everything fails, and what comes later.
void Comm::break_off(std::unique_lock<std::mutex>& lock) {
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
  for (Handle* device : devices) {
    Queue* queue = nullptr;
    if (const int32_t code = cuda::queue_open(device, &queue, message)) return code;
    queues.push_back(queue);
  }
  auto made = std::make_unique<cuda::Ranks>(devices, first, size);
  if (const int32_t code = made->init(id, message)) return code;
  ranks = std::move(made);
  return wait_until_over(until, false, "communicator", message);
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
  if (code == 0)
    code =
        ranks->enqueue(work.collective, work.dtype, item.buffers.data(), work.count, queues.data(), message);
  // Only then is it in the queues, and something else can be put behind it.
  if (code == 0) code = wait_until_over(item.until, false, cuda::name_of(work.collective), message);
  launching = code != 0;
  copy_all(item.copies_after);
  for (size_t d = 0; d < queues.size() && code == 0; ++d) {
    code = cuda::event_record(item.done_events[d], queues[d], message);
    if (code != 0) break;
    auto context = std::make_unique<cuda::Notice>(cuda::Notice{wakeup, d, item.number});
    code = cuda::queue_notify(
        queues[d],
        [](void* context) {
          const std::unique_ptr<cuda::Notice> notice(static_cast<cuda::Notice*>(context));
          std::lock_guard lock(notice->wakeup->mutex);
          notice->wakeup->passed[notice->device] = notice->number;
          notice->wakeup->notified = true;
          notice->wakeup->changed.notify_all();
        },
        context.get(), message);
    if (code == 0) (void)context.release();  // the callback deletes it
  }
  return code;
}

// Has the oldest one ended, or has something failed?
bool Comm::look() {
  const cuda::CommWork& oldest = enqueued.front();
  Message message{};
  int32_t code = 0;
  // Events cannot tell: later work may have recorded them again.
  bool reached;
  {
    std::lock_guard lock(wakeup->mutex);
    reached = std::all_of(wakeup->passed.begin(), wakeup->passed.end(),
                          [&](uint64_t number) { return number >= oldest.number; });
  }
  for (Event* event : oldest.done_events) {
    if (cuda::event_query(event, &message) == EventState::kFailed)
      code = static_cast<int32_t>(Code::kInternal);
  }
  // NCCL is asked last: work that another thread has aborted has failed, although the devices have passed it.
  bool over = false;
  if (code == 0) code = ranks->over(&over, &message);
  if (code == 0 && !reached && Clock::now() >= oldest.until)
    code = too_late(cuda::name_of(oldest.work.collective), &message);
  if (code != 0) {
    fail({code, message.text});
    return true;
  }
  if (!reached) return false;
  const cuda::CommWork ended = std::move(enqueued.front());
  enqueued.pop_front();
  ended.ended(ended.context, 0, "");
  return true;
}

int32_t Comm::wait_until_over(Clock::time_point until, bool closing, const char* what, Message* message) {
  const Clock::time_point begun = Clock::now();
  for (;;) {
    bool over = false;
    if (const int32_t code = ranks->over(&over, message); code != 0 || over) return code;
    const Clock::time_point now = Clock::now();
    if (now >= until) return too_late(what, message);
    std::unique_lock lock(wakeup->mutex);
    if (failure.code != 0)
      return cuda::fail(message, static_cast<Code>(failure.code), "%s", failure.text.c_str());
    if (ending && !closing) return cuda::fail(message, Code::kClosed, "the session is closed");
    if (now - begun < cuda::kSpin) {
      lock.unlock();
      std::this_thread::yield();
    } else {
      wakeup->changed.wait_for(lock, cuda::kSpin);
    }
  }
}

int32_t Comm::too_late(const char* what, Message* message) const {
  return cuda::fail(message, Code::kTimeout, "cuda:%d: the %s over %d devices has not ended in time",
                    devices.front()->index, what, size);
}

}  // namespace dsgd::device

#include "core/device/cuda/communicator.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/device/cuda/handles.h"
#include "core/device/cuda/nccl.h"

namespace dsgd::device {
namespace cuda {
namespace {

using Clock = std::chrono::steady_clock;

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

// An error, or none.
struct Failure {
  int32_t code = 0;
  std::string text;
};

struct Item {
  CollectiveWork work;
  std::vector<void*> buffers;
  std::vector<Event*> after, reached;
  std::vector<CollectiveCopy> before, behind;
  Clock::time_point until;
  CollectiveEnded ended;
  void* context;
};

Clock::time_point from_now(int64_t nanoseconds) {
  constexpr int64_t kYear = int64_t{365} * 24 * 3600 * 1'000'000'000;
  return Clock::now() + std::chrono::nanoseconds(std::min(nanoseconds, kYear));
}

// Devices ring it, also when who waits has gone.
struct Wakeup {
  std::mutex mutex;
  std::condition_variable changed;
  bool notified = false;
};

}  // namespace
}  // namespace cuda

struct Comm {
  using Clock = cuda::Clock;

  Comm(Handle* const* of, uint32_t count, const CommunicatorId& id, int32_t first, int32_t size)
      : devices(of, of + count), id(id), first(first), size(size) {}
  ~Comm();
  void start(cuda::Item joined) {
    waiting.push_back(std::move(joined));
    thread = std::thread([this] { run(); });
  }
  size_t count() const { return devices.size(); }
  void enqueue(cuda::Item item);
  void fail(cuda::Failure why);

 private:
  void run();
  void break_off(std::unique_lock<std::mutex>& lock);
  void begin(cuda::Item item);
  int32_t join(Clock::time_point until, Message* message);
  int32_t enqueue_now(const cuda::Item& item, Message* message);
  bool look();
  int32_t wait_until_over(Clock::time_point until, bool closing, const char* what, Message* message);
  int32_t too_late(const char* what, Message* message) const;

  const std::vector<Handle*> devices;
  const CommunicatorId id;
  const int32_t first, size;

  // of the thread
  std::vector<Queue*> queues;
  std::unique_ptr<cuda::Ranks> ranks;
  std::deque<cuda::Item> enqueued;

  const std::shared_ptr<cuda::Wakeup> wakeup = std::make_shared<cuda::Wakeup>();
  // under its mutex
  std::deque<cuda::Item> waiting;
  cuda::Failure failure;
  bool ending = false;

  std::thread thread;
};

Comm::~Comm() {
  {
    std::lock_guard lock(wakeup->mutex);
    ending = true;
    wakeup->changed.notify_all();
  }
  if (thread.joinable()) thread.join();
}

void Comm::enqueue(cuda::Item item) {
  std::unique_lock lock(wakeup->mutex);
  if (failure.code != 0) {
    const cuda::Failure why = failure;
    lock.unlock();
    return item.ended(item.context, why.code, why.text.c_str());
  }
  waiting.push_back(std::move(item));
  wakeup->changed.notify_all();
}

void Comm::fail(cuda::Failure why) {
  std::lock_guard lock(wakeup->mutex);
  if (failure.code == 0) failure = std::move(why);
  wakeup->changed.notify_all();
}

void Comm::run() {
  std::unique_lock lock(wakeup->mutex);
  while (!ending && failure.code == 0) {
    wakeup->notified = false;
    if (!waiting.empty()) {
      cuda::Item item = std::move(waiting.front());
      waiting.pop_front();
      lock.unlock();
      begin(std::move(item));
      lock.lock();
    } else if (enqueued.empty()) {
      wakeup->changed.wait(lock, [this] { return ending || failure.code != 0 || !waiting.empty(); });
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
  // Aborts before waiting for the devices, because they may wait for a host stream that never ends.
  if (!good_order) break_off(lock);
  lock.unlock();
  Message ignored;
  if (ranks && good_order && ranks->finalize(&ignored) == 0) {
    (void)wait_until_over(Clock::now() + cuda::kFinalize, true, "end", &ignored);
  }
  ranks.reset();  // aborts what is in flight, so that the devices let go of it
  for (Queue* queue : queues) cuda::queue_close(queue);
  lock.lock();
  break_off(lock);
}

// Everything fails, and what comes later.
void Comm::break_off(std::unique_lock<std::mutex>& lock) {
  if (failure.code == 0) failure = {static_cast<int32_t>(Code::kClosed), "the session is closed"};
  const cuda::Failure why = failure;
  std::deque<cuda::Item> left = std::move(enqueued);
  enqueued.clear();
  for (cuda::Item& item : waiting) left.push_back(std::move(item));
  waiting.clear();
  lock.unlock();
  for (const cuda::Item& item : left) item.ended(item.context, why.code, why.text.c_str());
  lock.lock();
}

void Comm::begin(cuda::Item item) {
  Message message{};
  if (!ranks) {
    const int32_t code = join(item.until, &message);
    if (code != 0) fail({code, message.text});
    return item.ended(item.context, code, message.text);
  }
  const int32_t code = enqueue_now(item, &message);
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

int32_t Comm::enqueue_now(const cuda::Item& item, Message* message) {
  const CollectiveWork& work = item.work;
  int32_t code = 0;
  const auto copy_all = [&](const std::vector<CollectiveCopy>& copies) {
    for (const CollectiveCopy& copy : copies) {
      if (code == 0) code = cuda::copy(queues[copy.device], copy.to, copy.from, copy.nbytes, message);
    }
  };
  for (size_t d = 0; d < item.after.size() && code == 0; ++d)
    code = cuda::queue_wait(queues[d], item.after[d], message);
  copy_all(item.before);
  if (code == 0)
    code =
        ranks->enqueue(work.collective, work.dtype, item.buffers.data(), work.count, queues.data(), message);
  // Only then is it in the queues, and something else can be put behind it.
  if (code == 0) code = wait_until_over(item.until, false, cuda::name_of(work.collective), message);
  copy_all(item.behind);
  for (size_t d = 0; d < queues.size() && code == 0; ++d) {
    code = cuda::event_record(item.reached[d], queues[d], message);
    if (code != 0) break;
    auto context = std::make_unique<std::shared_ptr<cuda::Wakeup>>(wakeup);
    code = cuda::queue_notify(
        queues[d],
        [](void* context) {
          const std::unique_ptr<std::shared_ptr<cuda::Wakeup>> wakeup(
              static_cast<std::shared_ptr<cuda::Wakeup>*>(context));
          std::lock_guard lock((*wakeup)->mutex);
          (*wakeup)->notified = true;
          (*wakeup)->changed.notify_all();
        },
        context.get(), message);
    if (code == 0) (void)context.release();  // the call's
  }
  return code;
}

// Has the oldest one ended, or has something failed?
bool Comm::look() {
  const cuda::Item& oldest = enqueued.front();
  Message message{};
  int32_t code = 0;
  bool reached = true;
  for (Event* event : oldest.reached) {
    const EventState state = cuda::event_query(event, &message);
    if (state == EventState::kFailed) code = static_cast<int32_t>(Code::kInternal);
    reached = reached && state == EventState::kDone;
  }
  // Asked after the events: what others broke off has not ended well, though the devices are through with it.
  bool over = false;
  if (code == 0) code = ranks->over(&over, &message);
  if (code == 0 && !reached && Clock::now() >= oldest.until)
    code = too_late(cuda::name_of(oldest.work.collective), &message);
  if (code != 0) {
    fail({code, message.text});
    return true;
  }
  if (!reached) return false;
  const cuda::Item ended = std::move(enqueued.front());
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

namespace cuda {

int32_t communicator_open(Handle* const* devices, uint32_t count, const CommunicatorId* id, int32_t first,
                          int32_t size, int64_t patience, CollectiveEnded ended, void* context,
                          Comm** communicator, Message* message) {
  auto made = std::make_unique<Comm>(devices, count, *id, first, size);
  try {
    made->start({{}, {}, {}, {}, {}, {}, from_now(patience), ended, context});
  } catch (const std::system_error& error) {
    return fail(message, Code::kLimit, "no thread can be started for NCCL: %s", error.what());
  }
  *communicator = made.release();
  return 0;
}

void communicator_enqueue(Comm* communicator, const CollectiveWork* work, CollectiveEnded ended,
                          void* context) {
  const size_t devices = communicator->count();
  Item item{*work,
            {work->buffers, work->buffers + devices},
            {},
            {work->reached, work->reached + devices},
            {work->before, work->before + work->befores},
            {work->behind, work->behind + work->behinds},
            from_now(work->patience),
            ended,
            context};
  if (work->after) item.after.assign(work->after, work->after + devices);
  communicator->enqueue(std::move(item));
}

void communicator_fail(Comm* communicator, int32_t code, const char* why) { communicator->fail({code, why}); }

void communicator_close(Comm* communicator) { delete communicator; }

}  // namespace cuda
}  // namespace dsgd::device

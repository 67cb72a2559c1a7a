#include "core/device/cuda/communicator.h"

#include <algorithm>
#include <memory>
#include <system_error>
#include <utility>

#include "core/device/cuda/communicator_thread.h"
#include "core/device/cuda/errors.h"

namespace dsgd::device::cuda {
namespace {

Comm::Clock::time_point from_now(int64_t nanoseconds) {
  // So that the sum does not overflow.
  constexpr int64_t kYear = int64_t{365} * 24 * 3600 * 1'000'000'000;
  return Comm::Clock::now() + std::chrono::nanoseconds(std::min(nanoseconds, kYear));
}

}  // namespace

int32_t communicator_open(DeviceHandle* const* devices, uint32_t count, const CommunicatorId* id,
                          int32_t first, int32_t size, int64_t timeout, CollectiveEnded ended, void* context,
                          Comm** communicator, Message* message) {
  auto made = std::make_unique<Comm>(devices, count, *id, first, size);
  try {
    CommWork join{};
    join.until = from_now(timeout);
    join.ended = ended;
    join.context = context;
    made->start(std::move(join));
  } catch (const std::system_error& error) {
    return fail(message, Code::kLimit, "no thread can be started for NCCL: %s", error.what());
  }
  *communicator = made.release();
  return 0;
}

void communicator_enqueue(Comm* communicator, const CollectiveWork* work, CollectiveEnded ended,
                          void* context) {
  const size_t devices = communicator->count();
  CommWork item{*work,
                {work->buffers, work->buffers + devices},
                {},
                {work->done_events, work->done_events + devices},
                {work->copies_before, work->copies_before + work->copies_before_count},
                {work->copies_after, work->copies_after + work->copies_after_count},
                0,
                from_now(work->timeout),
                ended,
                context};
  if (work->wait_for) item.wait_for.assign(work->wait_for, work->wait_for + devices);
  communicator->enqueue(std::move(item));
}

void communicator_fail(Comm* communicator, int32_t code, const char* why) { communicator->fail({code, why}); }

void communicator_close(Comm* communicator) { delete communicator; }

}  // namespace dsgd::device::cuda

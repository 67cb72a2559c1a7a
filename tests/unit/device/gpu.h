// GPUs for tests: of the fake runtime, linked in, or real ones through the installed plug-in
// (DSGD_TEST_PLUGIN), whose path is in the variable DSGD_CUDA_PLUGIN. Memory is read and written through
// queues only, so that both can.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <vector>

#include "core/device/device.h"

namespace dsgd {

inline void ok(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }

namespace device {

const Backend& cuda_backend();
int gpus();  // that tests may use; 0 if there are none

// Waits until the enqueued work is done. The device must notify, and not earlier.
[[nodiscard]] inline Status finish(Device& device, WorkQueue& queue) {
  const auto notification = std::make_shared<std::promise<void>>();
  auto notified = notification->get_future();
  auto event = std::move(device.new_event()).value();
  Status status = queue.record(*event);
  if (status.ok()) status = queue.notify([notification] { notification->set_value(); });
  if (!status.ok()) return status;
  if (notified.wait_for(std::chrono::minutes(1)) != std::future_status::ready)
    return Status(Code::kTimeout, "the device has not notified within a minute");
  const auto done = event->done();
  if (done.ok() && !done.value())
    return Status(Code::kInternal, "the device has notified before the work was done");
  return done.status();
}

// Reads and writes memory of a device as vectors.
class Access {
 public:
  explicit Access(std::shared_ptr<Device> device)
      : device_(std::move(device)), queue_(std::move(device_->new_queue()).value()) {}

  template <typename T>
  void write(void* to, const std::vector<T>& values) {
    const size_t nbytes = values.size() * sizeof(T);
    auto staging = device_->allocate_staging(nbytes).value();
    if (nbytes > 0) std::memcpy(staging.get(), values.data(), nbytes);
    ok(queue_->copy(to, staging.get(), nbytes));
    ok(finish(*device_, *queue_));
  }
  template <typename T>
  std::vector<T> read(const void* from, size_t count) {
    auto staging = device_->allocate_staging(count * sizeof(T)).value();
    ok(queue_->copy(staging.get(), from, count * sizeof(T)));
    ok(finish(*device_, *queue_));
    const T* data = static_cast<const T*>(staging.get());
    return std::vector<T>(data, data + count);
  }

 private:
  std::shared_ptr<Device> device_;
  std::unique_ptr<WorkQueue> queue_;
};

}  // namespace device
}  // namespace dsgd

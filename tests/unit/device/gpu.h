// GPUs for tests: of the fake runtime, linked in, or real ones through the installed plug-in
// (DSGD_TEST_PLUGIN), whose path is in the variable DSGD_CUDA_PLUGIN. Memory is read and written through
// queues only, so that both can.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "core/device/device.h"

namespace dsgd::device {

const Backend& cuda_backend();
int gpus();  // that tests may use; 0 if there are none

// Waits until the enqueued work is done. The device must notify, and not earlier.
inline void finish(Device& device, WorkQueue& queue) {
  struct Notification {
    std::mutex mutex;
    std::condition_variable changed;
    bool came = false;
  };
  const auto notification = std::make_shared<Notification>();
  auto event = std::move(device.new_event()).value();
  Status status = queue.record(*event);
  if (status.ok()) {
    status = queue.notify([notification] {
      std::lock_guard lock(notification->mutex);
      notification->came = true;
      notification->changed.notify_all();
    });
  }
  ASSERT_TRUE(status.ok()) << status.message();
  std::unique_lock lock(notification->mutex);
  ASSERT_TRUE(
      notification->changed.wait_for(lock, std::chrono::minutes(1), [&] { return notification->came; }));
  auto done = event->done();
  ASSERT_TRUE(done.ok()) << done.status().message();
  EXPECT_TRUE(done.value());
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
    const Status status = queue_->copy(to, staging.get(), nbytes);
    ASSERT_TRUE(status.ok()) << status.message();
    finish(*device_, *queue_);
  }
  template <typename T>
  std::vector<T> read(const void* from, size_t count) {
    auto staging = device_->allocate_staging(count * sizeof(T)).value();
    const Status status = queue_->copy(staging.get(), from, count * sizeof(T));
    EXPECT_TRUE(status.ok()) << status.message();
    finish(*device_, *queue_);
    const T* data = static_cast<const T*>(staging.get());
    return std::vector<T>(data, data + count);
  }

 private:
  std::shared_ptr<Device> device_;
  std::unique_ptr<WorkQueue> queue_;
};

}  // namespace dsgd::device

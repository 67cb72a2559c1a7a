// A double of the CUDA runtime for tests without a GPU: two devices in host memory, each stream a thread,
// host functions on one thread, kernels as loops. It stops a test that does what a GPU would punish later:
// pointers of the wrong kind or of another device, destroyed handles, memory that is freed in use or leaked,
// CUDA calls in host functions. Never a back end for users.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>

namespace fake_cuda {

// From now on: devices there are (0 to 8), or the error of cudaGetDeviceCount; the driver's version.
void set_devices(int count, cudaError_t error = cudaSuccess, int driver = 13000);
// Before any stream is made: work is done when it is enqueued, without threads, so that what follows can be
// repeated.
void set_immediate();
// Allows copies from and to pageable memory, which programs make and the plug-in must not.
void allow_pageable();
// From now on all devices have one PCI address, as slices of one GPU (MIG) have, or again one each.
void share_bus(bool share);
int bus_of(int device);
// From now on each call on this device returns the error, and its work is lost, as after a kernel that wrote
// where it may not; until it is repaired.
void break_device(int device, cudaError_t error);
void repair_device(int device);
// The n-th next call of a function (1: the next) returns this error, once.
void fail(const char* function, cudaError_t error, int n = 1);
// While one of these is alive, work in streams waits; what is enqueued is kept.
class Pause {
 public:
  Pause();
  ~Pause();
  Pause(const Pause&) = delete;
};
// While one of these is alive, copies in its direction wait.
class HoldCopies {
 public:
  enum Direction { kToDevice, kToHost };
  explicit HoldCopies(Direction direction);
  ~HoldCopies();
  HoldCopies(const HoldCopies&) = delete;

 private:
  const Direction direction_;
};
// Copies in a direction that were enqueued so far, and those of them that are not done yet.
struct Copies {
  size_t count = 0, nbytes = 0;
  int pending = 0;
};
Copies copies(HoldCopies::Direction direction);
// While one of these is alive, the stream is captured into a graph, which calls that might interfere spoil,
// of any thread that has not said that it may make them.
class Capture {
 public:
  explicit Capture(cudaStream_t stream);
  ~Capture();
  Capture(const Capture&) = delete;
  bool spoiled() const;
};
// From now on each piece of work in streams that are made on this device takes `delay`.
void set_delay(int device, std::chrono::microseconds delay);
// Puts host work into a stream, as a kernel of the host's would be.
void enqueue(cudaStream_t stream, std::function<void()> work);
int device_of(cudaStream_t stream);
// Stops the test if this is not memory that work on the device may use.
void must_be_on(int device, const void* data, size_t nbytes, const char* what);
// Frees memory without waiting for the device, as unmapping does.
void unmap(void* data);
// Streams, events and allocations that are alive.
struct Alive {
  int streams, events, allocations;
};
Alive alive();
size_t pinned();  // bytes of the host's memory that are pinned
// Waits until no more is alive than then; false if that takes more than a minute.
bool wait_for(const Alive& then);
int current_device();
// Devices that had to do something since the last call; each process pays for these with memory there.
std::set<int> take_devices_used();
// As in a process that has not used a device yet.
void forget_contexts();
size_t launches();  // so far
size_t copies();    // in both directions
// Priorities of the streams into which kernels and collectives were put since the last call.
constexpr int kGreatestPriority = -5;
std::set<int> take_priorities();
// Returns the range, of those by their address, that [data, data + nbytes) lies in, or null. A range has
// `nbytes`.
template <typename Ranges>
auto* find_range(Ranges& ranges, const void* data, size_t nbytes) {
  const auto at = reinterpret_cast<uintptr_t>(data);
  auto next = ranges.upper_bound(at);
  const bool inside = next != ranges.begin() && at + nbytes <= (--next)->first + next->second.nbytes;
  return inside ? &next->second : nullptr;
}

}  // namespace fake_cuda

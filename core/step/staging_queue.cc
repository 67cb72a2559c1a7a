#include "core/step/staging_queue.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/join.h"
#include "core/reduce/value_digest.h"
#include "core/step/state_stream.h"

namespace dsgd {

void StagingQueue::run(Work work) {
  waiting_.push_back(std::move(work));
  run_waiting();
}

// The functions that it calls may add work.
void StagingQueue::run_waiting() {
  if (std::exchange(running_, true)) return;
  while (!busy_ && !waiting_.empty()) {
    busy_ = true;
    const Work work = std::move(waiting_.front());
    waiting_.pop_front();
    const auto ended = [this, then = work.then](const Status& status) {
      busy_ = false;
      then(status);
      run_waiting();
    };
    if (Status enqueued = work.enqueue(); enqueued.ok()) {
      wait(work, ended);
    } else {
      ended(enqueued);
    }
  }
  running_ = false;
}

void StagingQueue::wait(const Work& work, Then then) {
  std::vector<DeviceContext*> devices;
  for (DeviceContext& context : step_.contexts()) {
    if (!context.is_host()) devices.push_back(&context);
    if (work.reads) break;
  }
  if (devices.empty()) return then({});
  const auto done = join(devices.size(), std::move(then));
  for (DeviceContext* context : devices) {
    device::WorkQueue& queue = work.reads ? *context->reader : *context->queue;
    waiter_.after(context->device->name(), queue, *context->staged, work.deadline, done);
  }
}

void StagingQueue::fail(const Status& why) {
  const std::deque<Work> waiting = std::exchange(waiting_, {});
  waiter_.fail(why);
  for (const Work& work : waiting) work.then(why);
}

struct StagingQueue::Digest {
  struct Part {
    uint32_t parameter;
    uint64_t begin;
    size_t count;
  };
  Digest(const Model& of_worker, std::function<void(Result<uint64_t>)> done)
      : model(of_worker), then(std::move(done)) {}
  const Model& model;
  const std::function<void(Result<uint64_t>)> then;
  ValueDigest digest;
  std::vector<Part> parts;
  size_t next = 0;

  DType dtype_of(const Part& part) const { return model.parameters[part.parameter]->dtype; }
  // The host may bind other memory between two parts.
  const std::byte* values_of(const Part& part, const DeviceContext& context) const {
    return model.bindings[context.replicas[0]][part.parameter].value +
           part.begin * dtype_size(dtype_of(part));
  }
};

// Values on the host are read where they are; others by way of the staging memory, which bounds a part.
void StagingQueue::digest_values(const Model& model, uint64_t begin, uint64_t end,
                                 std::function<void(Result<uint64_t>)> then) {
  const auto digest = std::make_shared<Digest>(model, std::move(then));
  DeviceContext& context = step_.contexts().front();
  for_ranges(model, begin, end, [&](const Parameter& parameter, uint64_t from, uint64_t to) {
    const uint64_t most = context.is_host() ? to - from : kStagingBytes / dtype_size(parameter.dtype);
    for (; from < to; from += most)
      digest->parts.push_back({parameter.index, from, std::min(most, to - from)});
  });
  if (context.is_host()) return digest_next(digest);
  waiter_.when_usable(
      transport::kNever, [this] { return step_.contexts().front().read_after_default_stream(); },
      [this, digest](const Status& status) { status.ok() ? digest_next(digest) : digest->then(status); });
}

void StagingQueue::digest_next(const std::shared_ptr<Digest>& digest) {
  if (digest->next == digest->parts.size()) return digest->then(digest->digest.result());
  const Digest::Part part = digest->parts[digest->next++];
  read(
      [this, digest, part] {
        const DeviceContext& context = step_.contexts().front();
        return context.is_host()
                   ? Status()
                   : context.reader->copy(context.staging.get(), digest->values_of(part, context),
                                          part.count * dtype_size(digest->dtype_of(part)));
      },
      [this, digest, part](const Status& status) {
        if (!status.ok()) return digest->then(status);
        const DeviceContext& context = step_.contexts().front();
        digest->digest.add(digest->dtype_of(part),
                           context.is_host() ? digest->values_of(part, context) : context.staging.get(),
                           part.count);
        digest_next(digest);
      });
}

}  // namespace dsgd

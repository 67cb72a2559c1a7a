// A step's buffers and the optimizer's state on the devices of this worker, and waiting for these.

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/join.h"
#include "core/step/step.h"

namespace dsgd {

void Step::set_contexts(std::vector<DeviceContext> contexts) {
  contexts_ = std::move(contexts);
  where_.resize(model_.replicas.size());
  for (size_t p = 0; p < contexts_.size(); ++p) {
    for (size_t k = 0; k < contexts_[p].replicas.size(); ++k) where_[contexts_[p].replicas[k]] = {p, k};
  }
}

void Step::set_teams(Teams teams, std::unique_ptr<device::CollectiveQueue> queue) {
  teams_ = std::move(teams);
  collective_queue_ = std::move(queue);
}

// ---- memory

// All parts of a team's devices, which are of one size.
size_t Step::team_bytes(const Bucket& bucket) const {
  if (!in_team()) return 0;
  const TeamMember& member = teams_.member(rank());
  return Teams::device_part(member, bucket.elements) * static_cast<size_t>(member.size) *
         dtype_size(bucket.dtype);
}

Status Step::make_buffers(size_t index) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  const size_t nbytes = bucket.elements * dtype_size(bucket.dtype);
  // Zeroed: padding adds nothing. Devices copy from and to what is on the host.
  const auto on_host = [&](size_t size, Memory* memory) -> Status {
    auto made = contexts_.back().device->allocate_staging(size);
    if (!made.ok()) return made.status();
    *memory = std::move(made).value();
    buffer_bytes_ += size;
    return {};
  };
  Status status;
  if (!stays_on_device()) {
    status = on_host(bucket.elements * dtype_size(data_type(bucket)), &buffers.data);
  } else if (mesh_) {
    // Trailers: without owners, the first.
    status = on_host(2 * bucket.pieces.size() * dtype_size(bucket.dtype), &buffers.data);
  }
  if (status.ok() && options_.reproducible) {
    status = on_host(nbytes, &buffers.result);
    if (status.ok())
      status = on_host(bucket.elements * dtype_size(reproducible::exponent_type(bucket.dtype)),
                       &buffers.exponents);
  }
  if (status.ok() && updates_at_owner() && !host_has_replicas()) status = on_host(nbytes, &buffers.values);
  if (status.ok() && norms_on_device()) {
    buffers.square_ranges = 0;
    for (const Piece& piece : bucket.pieces) buffers.square_ranges += device::square_ranges(piece.count);
    const size_t nbytes_of_sums = buffers.square_ranges * sizeof(double);
    status = on_host(nbytes_of_sums, &buffers.squares_here);
    auto made = contexts_.front().device->allocate(nbytes_of_sums);
    if (!made.ok()) return made.status();
    buffers.squares_there = std::move(made).value();
  }
  buffers.at.resize(contexts_.size());
  bool data_taken = host_has_replicas();
  for (size_t p = 0; p < contexts_.size() && status.ok(); ++p) {
    const DeviceContext& context = contexts_[p];
    if (context.is_host()) continue;
    AtDevice& at = buffers.at[p];
    auto sums = context.device->allocate(std::max(nbytes, team_bytes(bucket)));
    if (!sums.ok()) return sums.status();
    at.sums = std::move(sums).value();
    for (auto* mark : {&at.summed, &at.reached, &at.returned}) {
      auto made = context.device->new_event();
      if (!made.ok()) return made.status();
      *mark = std::move(made).value();
    }
    for (uint32_t r : context.replicas) {  // more only for hosts with more streams
      auto made = context.device->new_event();
      if (!made.ok()) return made.status();
      model_.stream_marks[r].buckets[index].marks.push_back(std::move(made).value());
    }
    if (stays_on_device()) {
      buffers.means.resize(bucket.pieces.size());
    } else if (in_team()) {
      continue;  // each device has its part of the bucket's own memory
    } else if (options_.reproducible) {
      at.fetched.resize(context.replicas.size());
      for (Memory& gradients : at.fetched) {
        if (status.ok()) status = on_host(nbytes, &gradients);
      }
    } else if (data_taken) {
      status = on_host(nbytes, &at.fetched_sums);
    }
    data_taken = true;
  }
  return status;
}

Status Step::ensure_state() {
  Status status;
  size_t total = 0;
  const auto fill = [&](OptimizerState& state, const auto& allocate) {
    state.resize(model_.parameters.size());
    for (size_t p = 0; p < state.size(); ++p) {
      const Parameter& parameter = *model_.parameters[p];
      while (status.ok() && parameter.trained && state[p].size() < states_of(parameter)) {
        Result<Memory> made = allocate(parameter.state_nbytes());
        if (!made.ok()) {
          status = made.status();
        } else {
          state[p].push_back(std::move(made).value());
        }
      }
      total += state[p].size() * parameter.state_nbytes();
    }
  };
  const auto untouched = [](size_t nbytes) -> Result<Memory> {
    Memory memory = untouched_memory(nbytes);
    if (memory) return memory;
    return Status(Code::kNoMemory,
                  "cpu: no memory for " + std::to_string(nbytes) + " bytes of optimizer state");
  };
  const bool at_owner = updates_at_owner();
  if (at_owner || host_has_replicas()) fill(host_state_, untouched);
  if (at_owner) {
    fill(next_state_, untouched);
  } else {
    next_state_.clear();
  }
  for (DeviceContext& context : contexts_) {
    if (context.is_host()) continue;
    if (at_owner) {
      context.state.clear();
    } else {
      fill(context.state, [&](size_t nbytes) { return context.device->allocate(nbytes); });
    }
  }
  model_.updates.resize(model_.parameters.size(), 0);
  counters_.state.set(total);

  if (status.ok() && mesh_ && !contexts_[where_[0].first].is_host() && !digest_here_) {
    device::Device& device = *contexts_[where_[0].first].device;
    size_t nbytes = 0;
    for (const auto& parameter : model_.parameters) {
      digest_offsets_.push_back(nbytes);
      if (parameter->trained)
        nbytes += ((parameter->count / kDigestParts + 1) * dtype_size(wide(parameter->dtype)) + 15) / 16 * 16;
    }
    digest_offsets_.push_back(nbytes);
    auto there = device.allocate(nbytes);
    if (!there.ok()) return there.status();
    auto here = device.allocate_staging(nbytes);
    if (!here.ok()) return here.status();
    digest_there_ = std::move(there).value();
    digest_here_ = std::move(here).value();
  }
  return status;
}

// The last step may have ended before its updates did. What one device writes to the host now, another may
// still be reading.
Status Step::order_device_queues() {
  if (std::exchange(previous_step_skipped_, false)) {
    for (DeviceContext& context : contexts_) {
      if (Status status = context.align(); !status.ok()) return status;
    }
  }
  for (DeviceContext& context : contexts_) {
    for (DeviceContext& other : contexts_) {
      if (&context == &other || context.is_host() || other.is_host()) continue;
      if (Status status = context.queue->wait(*other.reached); !status.ok()) return status;
    }
  }
  return {};
}

// ---- values that the header's digest covers

// Gathered by the device in one pass; the weight of 1 leaves their bits as they are.
Status Step::fetch_digest_values(uint64_t part) {
  DeviceContext& context = contexts_[where_[0].first];
  if (Status status = context.follow_default_stream(); !status.ok()) return status;
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    sum_pieces_.clear();
    terms_.clear();
    const size_t element = dtype_size(dtype);
    for (size_t p = 0; p < model_.parameters.size(); ++p) {
      const Parameter& parameter = *model_.parameters[p];
      if (!parameter.trained || wide(parameter.dtype) != dtype) continue;
      const auto [begin, end] = digest_range(parameter, part);
      if (begin == end) continue;
      sum_pieces_.push_back({digest_offsets_[p] / element, end - begin, static_cast<uint32_t>(terms_.size()),
                             1, parameter.dtype});
      terms_.push_back({model_.bindings[0][p].value + begin * dtype_size(parameter.dtype), 1});
    }
    if (sum_pieces_.empty()) continue;
    Status status = context.queue->sum(dtype, sum_pieces_, terms_, digest_there_.get());
    if (!status.ok()) return status;
  }
  return context.queue->copy(digest_here_.get(), digest_there_.get(), digest_offsets_.back());
}

// ---- optimizer state, around a change of strategy

void Step::copy_state(bool to_devices, transport::Time deadline, std::function<void(const Status&)> done) {
  const bool only_host = contexts_.back().is_host();
  if (only_host || updates_at_owner() || (!to_devices && host_has_replicas())) return done({});
  if (host_state_.empty()) host_state_.resize(model_.parameters.size());
  // Through memory that devices can copy from and to, which is what stays on the host until the change is
  // over.
  for (size_t p = 0; p < model_.parameters.size(); ++p) {
    const Parameter& parameter = *model_.parameters[p];
    const size_t nbytes = parameter.state_nbytes(), tensors = contexts_.back().state[p].size();
    for (size_t s = 0; s < tensors; ++s) {
      auto staging = contexts_.back().device->allocate_staging(nbytes);
      if (!staging.ok()) return done(staging.status());
      if (to_devices) {
        if (nbytes > 0) std::memcpy(staging.value().get(), host_state_[p][s].get(), nbytes);
      } else {
        host_state_[p].resize(tensors);
      }
      host_state_[p][s] = std::move(staging).value();
      for (DeviceContext& context : contexts_) {
        if (context.is_host()) continue;
        void* there = context.state[p][s].get();
        void* here = host_state_[p][s].get();
        Status status =
            to_devices ? context.queue->copy(there, here, nbytes) : context.queue->copy(here, there, nbytes);
        if (!status.ok()) return done(status);
        if (!to_devices) break;  // all devices have the same
      }
    }
  }
  when_reached(deadline, [this, to_devices, done](const Status& status) {
    if (to_devices && !host_has_replicas()) host_state_.clear();
    done(status);
  });
}

// ---- waiting

void Step::when_reached(transport::Time deadline, std::function<void(const Status&)> then) {
  const auto reached = join(contexts_.size(), std::move(then));
  for (DeviceContext& context : contexts_)
    waiter_.after(context.device->name(), *context.queue, *context.reached, deadline, reached);
}

}  // namespace dsgd

#include "core/step/optimizer_state.h"

#include <cstring>
#include <utility>

namespace dsgd {

Status OptimizerStateStore::make() {
  const auto fill = [&](OptimizerState& state, const auto& allocate) -> Status {
    state.resize(state_.model.parameters.size());
    for (size_t p = 0; p < state.size(); ++p) {
      const Parameter& parameter = *state_.model.parameters[p];
      while (parameter.trained && state[p].size() < state_.model.states_of(parameter)) {
        Memory tensor;
        DSGD_RETURN_IF_ERROR(allocate(parameter.state_nbytes()).into(&tensor));
        state[p].push_back(std::move(tensor));
      }
    }
    return {};
  };
  const auto on_host = [this](size_t nbytes) { return untouched(nbytes); };
  const bool at_owner = state_.path.updates_at_owner;
  state_.model.updates.resize(state_.model.parameters.size(), 0);
  if (at_owner || state_.path.host_has_replicas) DSGD_RETURN_IF_ERROR(fill(on_host_, on_host));
  if (at_owner) {
    DSGD_RETURN_IF_ERROR(fill(next_, on_host));
  } else {
    next_.clear();
  }
  for (DeviceContext& context : state_.contexts) {
    if (context.is_host()) continue;
    if (at_owner) {
      context.state.clear();
    } else {
      DSGD_RETURN_IF_ERROR(
          fill(context.state, [&](size_t nbytes) { return context.device->allocate(nbytes); }));
    }
  }
  bytes_ = at_owner ? owned_bytes() : replicated_bytes();
  return {};
}

// Of this worker's devices, where each worker has all state.
size_t OptimizerStateStore::replicated_bytes() const {
  size_t total = 0;
  const auto add = [&](const OptimizerState& state) {
    for (size_t p = 0; p < state.size(); ++p)
      total += state[p].size() * state_.model.parameters[p]->state_nbytes();
  };
  if (state_.path.host_has_replicas) add(on_host_);
  for (const DeviceContext& context : state_.contexts) {
    if (!context.is_host()) add(context.state);
  }
  return total;
}

Result<Memory> OptimizerStateStore::untouched(size_t nbytes) const {
  Memory memory = untouched_memory(nbytes);
  if (memory) return memory;
  return Status(Code::kNoMemory,
                "cpu: no memory for " + std::to_string(nbytes) + " bytes of optimizer state");
}

// Of the ranges that this worker keeps, twice: the state, and that of the next step. Of the rest no page is
// touched.
size_t OptimizerStateStore::owned_bytes() const {
  size_t total = 0;
  for (const Bucket& bucket : state_.plan) {
    for (const Piece& piece : bucket.pieces) {
      const Parameter& parameter = *state_.model.parameters[piece.parameter];
      if (piece.is_kept_by(state_.rank()))
        total += 2 * piece.count * state_.model.states_of(parameter) * dtype_size(wide(parameter.dtype));
    }
  }
  return total;
}

void OptimizerStateStore::advance(const std::vector<uint64_t>& updates) {
  for (size_t p = 0; p < updates.size(); ++p) {
    if (updates[p] != state_.model.updates[p]) std::swap(on_host_[p], next_[p]);
  }
}

Status OptimizerStateStore::keep_only(const std::vector<std::vector<std::pair<uint64_t, uint64_t>>>& ranges) {
  for (size_t p = 0; p < ranges.size(); ++p) {
    const Parameter& parameter = *state_.model.parameters[p];
    const size_t element = dtype_size(wide(parameter.dtype));
    for (Memory& tensor : on_host_[p]) {
      Memory kept;
      DSGD_RETURN_IF_ERROR(untouched(parameter.state_nbytes()).into(&kept));
      for (const auto& [begin, end] : ranges[p])
        std::memcpy(bytes(kept) + begin * element, bytes(tensor) + begin * element, (end - begin) * element);
      tensor = std::move(kept);
    }
    for (Memory& tensor : next_[p]) DSGD_RETURN_IF_ERROR(untouched(parameter.state_nbytes()).into(&tensor));
  }
  return {};
}

// Whether devices have all of it.
bool OptimizerStateStore::is_on_devices() const {
  return !state_.contexts.back().is_host() && !state_.path.updates_at_owner;
}

void OptimizerStateStore::fetch_to_host(transport::Time deadline, std::function<void(const Status&)> done) {
  if (!is_on_devices() || state_.path.host_has_replicas) return done({});
  DeviceContext& context = state_.contexts.front();
  on_host_.resize(state_.model.parameters.size());
  for (size_t p = 0; p < state_.model.parameters.size(); ++p) {
    const size_t nbytes = state_.model.parameters[p]->state_nbytes();
    on_host_[p].resize(context.state[p].size());
    for (size_t s = 0; s < context.state[p].size(); ++s) {
      Status status = context.device->allocate_staging(nbytes).into(&on_host_[p][s]);
      if (status.ok()) status = context.queue->copy(on_host_[p][s].get(), context.state[p][s].get(), nbytes);
      if (!status.ok()) return done(status);
    }
  }
  devices_.when_queues_done(deadline, std::move(done));
}

void OptimizerStateStore::spread_to_devices(transport::Time deadline,
                                            std::function<void(const Status&)> done) {
  if (!is_on_devices()) return done({});
  for (size_t p = 0; p < state_.model.parameters.size(); ++p) {
    const size_t nbytes = state_.model.parameters[p]->state_nbytes();
    for (size_t s = 0; s < state_.contexts.back().state[p].size(); ++s) {
      auto staging = state_.contexts.back().device->allocate_staging(nbytes);
      if (!staging.ok()) return done(staging.status());
      if (nbytes > 0) std::memcpy(staging.value().get(), on_host_[p][s].get(), nbytes);
      on_host_[p][s] = std::move(staging).value();
      for (DeviceContext& context : state_.contexts) {
        if (context.is_host()) continue;
        Status status = context.queue->copy(context.state[p][s].get(), on_host_[p][s].get(), nbytes);
        if (!status.ok()) return done(status);
      }
    }
  }
  devices_.when_queues_done(deadline, [this, done = std::move(done)](const Status& status) {
    if (!state_.path.host_has_replicas) on_host_.clear();
    done(status);
  });
}

}  // namespace dsgd

#include "core/step/untrained_values.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/join.h"
#include "core/reduce/kernels.h"

namespace dsgd {
namespace {

constexpr size_t kWidened = 256;  // elements at once

template <typename T>
void add_weighted(double* sums, const T* values, size_t count, double weight) {
  for (size_t i = 0; i < count; ++i) sums[i] += weight * static_cast<double>(values[i]);
}

void add_weighted(DType dtype, double* sums, const std::byte* values, size_t count, double weight) {
  if (dtype == DType::kFloat64)
    return add_weighted(sums, reinterpret_cast<const double*>(values), count, weight);
  if (dtype == DType::kFloat32)
    return add_weighted(sums, reinterpret_cast<const float*>(values), count, weight);
  float widened[kWidened];
  for (size_t begin = 0; begin < count; begin += kWidened) {
    const size_t some = std::min(kWidened, count - begin);
    widen(dtype, widened, values + begin * dtype_size(dtype), some);
    add_weighted(sums + begin, widened, some, weight);
  }
}

template <typename T>
void divide_to(T* values, const double* sums, size_t count, double weight) {
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(sums[i] / weight);
}

void divide_to(DType dtype, std::byte* values, const double* sums, size_t count, double weight) {
  if (dtype == DType::kFloat64) return divide_to(reinterpret_cast<double*>(values), sums, count, weight);
  if (dtype == DType::kFloat32) return divide_to(reinterpret_cast<float*>(values), sums, count, weight);
  float means[kWidened];
  for (size_t begin = 0; begin < count; begin += kWidened) {
    const size_t some = std::min(kWidened, count - begin);
    divide_to(means, sums + begin, some, weight);
    narrow(dtype, values + begin * dtype_size(dtype), means, some);
  }
}

}  // namespace

Status UntrainedValues::make_buffers() {
  const Model& model = state_.model;
  staging_.assign(model.replicas.size(), std::vector<Memory>(model.parameters.size()));
  for (const DeviceContext& context : state_.contexts) {
    for (uint32_t r : context.replicas) {
      for (size_t p = 0; p < model.parameters.size(); ++p) {
        if (context.is_host() || model.settings[p].sync == UntrainedSync::kNone) continue;
        DSGD_RETURN_IF_ERROR(
            context.device->allocate_staging(model.parameters[p]->nbytes()).into(&staging_[r][p]));
        state_.buffer_bytes += model.parameters[p]->nbytes();
      }
    }
  }
  return {};
}

std::vector<uint32_t> UntrainedValues::due_for(UntrainedSync sync) const {
  std::vector<uint32_t> due;
  for (uint32_t p = 0; p < state_.model.parameters.size(); ++p) {
    const ParameterSettings& settings = state_.model.settings[p];
    if (settings.sync == sync && (state_.request.step + 1) % settings.sync_period == 0) due.push_back(p);
  }
  return due;
}

bool UntrainedValues::find_due() {
  if (state_.total_replicas == 1) return false;
  mean_due_ = due_for(UntrainedSync::kMean);
  first_due_ = due_for(UntrainedSync::kFirst);
  return !mean_due_.empty() || !first_due_.empty();
}

void UntrainedValues::exchange(std::function<void()> then) {
  const auto copied = [this, then = std::move(then)] {
    devices_.when_queues_done(state_.request.deadline,
                              step_.or_device_failure([this, then] { exchange_sums(then); }));
  };
  waiter_.when_usable(
      state_.request.deadline, [this] { return copy_to_host(); }, step_.or_device_failure(copied));
}

void UntrainedValues::exchange_sums(std::function<void()> then) {
  const Group* workers = group_.workers().get();
  add_up(!workers || workers->ranks.front() == state_.rank());
  constexpr size_t kParts = 3;  // the two all-reduces, and this function itself
  const auto exchanged = join(kParts, step_.or_fail(std::move(then)));
  const auto sum = [&](UntrainedSync sync, DType dtype, void* data, size_t count) {
    if (!state_.mesh || count == 0) return exchanged({});
    AllReducePlan all{count, dtype, Reduction::kSum, static_cast<std::byte*>(data), nullptr};
    const Status made = tasks_.all_reduce(state_.numbers.untrained(sync), std::move(all), exchanged);
    if (!made.ok()) exchanged(made);
  };
  sum(UntrainedSync::kMean, DType::kFloat64, mean_sums_.data(), mean_sums_.size());
  sum(UntrainedSync::kFirst, DType::kUint8, first_values_.data(), first_values_.size());
  exchanged({});
}

Status UntrainedValues::copy_to_host() {
  for (DeviceContext& context : state_.contexts) {
    if (context.is_host()) continue;
    DSGD_RETURN_IF_ERROR(context.follow_default_stream());
    for (uint32_t r : context.replicas) {
      for (const auto* due : {&mean_due_, &first_due_}) {
        for (uint32_t p : *due) {
          DSGD_RETURN_IF_ERROR(context.queue->copy(staging_[r][p].get(), state_.model.bindings[r][p].value,
                                                   state_.model.parameters[p]->nbytes()));
        }
      }
    }
  }
  return {};
}

const std::byte* UntrainedValues::value(uint32_t replica, uint32_t parameter) const {
  const Memory& staging = staging_[replica][parameter];
  return staging ? bytes(staging) : state_.model.bindings[replica][parameter].value;
}

void UntrainedValues::add_up(bool has_first) {
  mean_sums_.clear();
  for (uint32_t p : mean_due_) {
    const Parameter& parameter = *state_.model.parameters[p];
    const size_t begin = mean_sums_.size();
    mean_sums_.resize(begin + parameter.count);
    for (uint32_t r = 0; r < state_.model.replicas.size(); ++r) {
      const double weight = state_.request.weights[r];
      if (weight > 0)
        add_weighted(parameter.dtype, mean_sums_.data() + begin, value(r, p), parameter.count, weight);
    }
  }
  // Zeros on all workers but the first, so that the sum of the bytes is the first one's values.
  first_values_.clear();
  for (uint32_t p : first_due_) {
    const size_t begin = first_values_.size(), nbytes = state_.model.parameters[p]->nbytes();
    first_values_.resize(begin + nbytes);
    if (has_first && nbytes > 0) std::memcpy(first_values_.data() + begin, value(0, p), nbytes);
  }
}

Status UntrainedValues::write() {
  for (DeviceContext& context : state_.contexts) {
    for (uint32_t r : context.replicas) {
      const double* sums = mean_sums_.data();
      const std::byte* values = first_values_.data();
      const auto give = [&](uint32_t p, const auto& write) -> Status {
        const Parameter& parameter = *state_.model.parameters[p];
        std::byte* const value = state_.model.bindings[r][p].value;
        write(parameter, context.is_host() ? value : bytes(staging_[r][p]));
        return context.is_host() ? Status()
                                 : context.queue->copy(value, staging_[r][p].get(), parameter.nbytes());
      };
      for (uint32_t p : mean_due_) {
        DSGD_RETURN_IF_ERROR(give(p, [&](const Parameter& parameter, std::byte* value) {
          divide_to(parameter.dtype, value, sums, parameter.count, state_.total_weight);
          sums += parameter.count;
        }));
      }
      for (uint32_t p : first_due_) {
        DSGD_RETURN_IF_ERROR(give(p, [&](const Parameter& parameter, std::byte* value) {
          if (parameter.nbytes() > 0) std::memcpy(value, values, parameter.nbytes());
          values += parameter.nbytes();
        }));
      }
    }
  }
  return {};
}

}  // namespace dsgd

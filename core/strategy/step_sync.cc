// Untrained parameters, such as batch-norm's statistics. Each replica changes its own; those with `sync` are made equal again at
// the end of a step: to the mean, weighted as that of gradients, or to the values of the first replica.

#include <cstring>

#include "core/base/join.h"
#include "core/collectives/all_reduce.h"
#include "core/reduce/kernels.h"
#include "core/strategy/step.h"

namespace dsgd {
namespace {

constexpr size_t kScratch = 256;  // elements

template <typename T>
void add_weighted(double* sums, const T* values, size_t count, double weight) {
  for (size_t i = 0; i < count; ++i) sums[i] += weight * static_cast<double>(values[i]);
}

void add_weighted(DType dtype, double* sums, const std::byte* values, size_t count, double weight) {
  if (dtype == DType::kFloat64) return add_weighted(sums, reinterpret_cast<const double*>(values), count, weight);
  if (dtype == DType::kFloat32) return add_weighted(sums, reinterpret_cast<const float*>(values), count, weight);
  float widened[kScratch];
  for (size_t begin = 0; begin < count; begin += kScratch) {
    const size_t some = std::min(kScratch, count - begin);
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
  float means[kScratch];
  for (size_t begin = 0; begin < count; begin += kScratch) {
    const size_t some = std::min(kScratch, count - begin);
    divide_to(means, sums + begin, some, weight);
    narrow(dtype, values + begin * dtype_size(dtype), means, some);
  }
}

}  // namespace

Status Step::make_sync_staging() {
  untrained_.staging.assign(model_.replicas.size(), std::vector<Memory>(model_.parameters.size()));
  for (const Place& place : places_) {
    for (uint32_t r : place.replicas) {
      for (size_t p = 0; p < model_.parameters.size(); ++p) {
        if (place.is_host() || model_.settings[p].sync == Sync::kNone) continue;
        auto made = place.device->allocate_staging(model_.parameters[p]->nbytes());
        if (!made.ok()) return made.status();
        untrained_.staging[r][p] = std::move(made).value();
        buffer_bytes_ += model_.parameters[p]->nbytes();
      }
    }
  }
  return {};
}

std::vector<uint32_t> Step::due_for(Sync sync) const {
  std::vector<uint32_t> due;
  for (uint32_t p = 0; p < model_.parameters.size(); ++p) {
    const ParameterSettings& settings = model_.settings[p];
    if (settings.sync == sync && (request_.step + 1) % settings.sync_period == 0) due.push_back(p);
  }
  return due;
}

void Step::sync_untrained() {
  if (total_replicas_ > 1) {
    untrained_.mean = due_for(Sync::kMean);
    untrained_.first = due_for(Sync::kFirst);
  }
  if (untrained_.mean.empty() && untrained_.first.empty()) return values_are_final();
  if (Status status = fetch_untrained(); !status.ok()) return device_failed(status);
  when_reached(request_.deadline, [this](const Status& status) {
    if (!done_) return;
    status.ok() ? exchange_untrained() : device_failed(status);
  });
}

// From devices to the host.
Status Step::fetch_untrained() {
  for (Place& place : places_) {
    if (place.is_host()) continue;
    if (Status status = place.follow_default_stream(); !status.ok()) return status;
    for (uint32_t r : place.replicas) {
      for (const auto* due : {&untrained_.mean, &untrained_.first}) {
        for (uint32_t p : *due) {
          Status status = place.queue->copy(untrained_.staging[r][p].get(), model_.bindings[r][p].value, model_.parameters[p]->nbytes());
          if (!status.ok()) return status;
        }
      }
    }
  }
  return {};
}

// One all-reduce for the means and one for the first replica's values, to which the other workers add zeros: sums of bytes, so that
// they arrive as they are.
void Step::exchange_untrained() {
  const auto value_of = [this](uint32_t r, uint32_t p) {
    return untrained_.staging[r][p] ? bytes(untrained_.staging[r][p]) : model_.bindings[r][p].value;
  };
  untrained_.sums.clear();
  for (uint32_t p : untrained_.mean) {
    const Parameter& parameter = *model_.parameters[p];
    untrained_.sums.resize(untrained_.sums.size() + parameter.count);
    double* const sums = untrained_.sums.data() + untrained_.sums.size() - parameter.count;
    for (uint32_t r = 0; r < model_.replicas.size(); ++r) {
      if (request_.weights[r] > 0) add_weighted(parameter.dtype, sums, value_of(r, p), parameter.count, request_.weights[r]);
    }
  }
  untrained_.values.clear();
  const bool has_first = !group_ || group_->ranks.front() == rank();
  for (uint32_t p : untrained_.first) {
    const size_t nbytes = model_.parameters[p]->nbytes();
    untrained_.values.resize(untrained_.values.size() + nbytes);
    if (has_first && nbytes > 0) std::memcpy(untrained_.values.data() + untrained_.values.size() - nbytes, value_of(0, p), nbytes);
  }
  const auto exchanged = join(3, [this](const Status& status) {
    if (!done_) return;
    if (!status.ok()) return fail(status);
    if (Status given = give_untrained(); !given.ok()) return device_failed(given);
    values_are_final();
  });
  const auto sum = [&](Sync sync, DType dtype, std::byte* data, size_t count) {
    if (!mesh_ || count == 0) return exchanged({});
    auto shape = shape_of(sync_operation(sync), Kind::kBucket, dtype, Algorithm::kDirect, count);
    shape.reduction = static_cast<uint8_t>(Reduction::kSum);
    auto task = make_all_reduce(*mesh_, shape, strategy_.algorithm, {count, dtype, Reduction::kSum, data, nullptr}, exchanged, group_);
    task.ok() ? static_cast<void>(add(std::move(task).value())) : exchanged(task.status());
  };
  sum(Sync::kMean, DType::kFloat64, reinterpret_cast<std::byte*>(untrained_.sums.data()), untrained_.sums.size());
  sum(Sync::kFirst, DType::kUint8, untrained_.values.data(), untrained_.values.size());
  exchanged({});
}

// To all replicas of this worker.
Status Step::give_untrained() {
  for (Place& place : places_) {
    for (uint32_t r : place.replicas) {
      const double* sums = untrained_.sums.data();
      const std::byte* values = untrained_.values.data();
      const auto give = [&](uint32_t p, const auto& write) -> Status {
        const Parameter& parameter = *model_.parameters[p];
        std::byte* const value = model_.bindings[r][p].value;
        write(parameter, place.is_host() ? value : bytes(untrained_.staging[r][p]));
        return place.is_host() ? Status() : place.queue->copy(value, untrained_.staging[r][p].get(), parameter.nbytes());
      };
      for (uint32_t p : untrained_.mean) {
        Status status = give(p, [&](const Parameter& parameter, std::byte* value) {
          divide_to(parameter.dtype, value, sums, parameter.count, total_weight_);
          sums += parameter.count;
        });
        if (!status.ok()) return status;
      }
      for (uint32_t p : untrained_.first) {
        Status status = give(p, [&](const Parameter& parameter, std::byte* value) {
          if (parameter.nbytes() > 0) std::memcpy(value, values, parameter.nbytes());
          values += parameter.nbytes();
        });
        if (!status.ok()) return status;
      }
    }
  }
  return {};
}

}  // namespace dsgd

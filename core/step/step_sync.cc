// Synchronises untrained parameters, such as batch-norm's statistics. Each replica changes its own values. At
// the end of a step those with `sync` become the weighted mean over all replicas, or the first replica's
// values.

#include <cstring>

#include "core/base/join.h"
#include "core/collectives/all_reduce.h"
#include "core/reduce/kernels.h"
#include "core/step/step.h"

namespace dsgd {
namespace {

constexpr size_t kScratch = 256;  // elements

template <typename T>
void add_weighted(double* sums, const T* values, size_t count, double weight) {
  for (size_t i = 0; i < count; ++i) sums[i] += weight * static_cast<double>(values[i]);
}

void add_weighted(DType dtype, double* sums, const std::byte* values, size_t count, double weight) {
  if (dtype == DType::kFloat64)
    return add_weighted(sums, reinterpret_cast<const double*>(values), count, weight);
  if (dtype == DType::kFloat32)
    return add_weighted(sums, reinterpret_cast<const float*>(values), count, weight);
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
  for (const DeviceContext& context : contexts_) {
    for (uint32_t r : context.replicas) {
      for (size_t p = 0; p < model_.parameters.size(); ++p) {
        if (context.is_host() || model_.settings[p].sync == UntrainedSync::kNone) continue;
        auto made = context.device->allocate_staging(model_.parameters[p]->nbytes());
        if (!made.ok()) return made.status();
        untrained_.staging[r][p] = std::move(made).value();
        buffer_bytes_ += model_.parameters[p]->nbytes();
      }
    }
  }
  return {};
}

std::vector<uint32_t> Step::due_for(UntrainedSync sync) const {
  std::vector<uint32_t> due;
  for (uint32_t p = 0; p < model_.parameters.size(); ++p) {
    const ParameterSettings& settings = model_.settings[p];
    if (settings.sync == sync && (request_.step + 1) % settings.sync_period == 0) due.push_back(p);
  }
  return due;
}

void Step::sync_untrained() {
  if (total_replicas_ > 1) {
    untrained_.mean_due = due_for(UntrainedSync::kMean);
    untrained_.first_due = due_for(UntrainedSync::kFirst);
  }
  if (untrained_.mean_due.empty() && untrained_.first_due.empty()) return deliver_values();
  if (Status status = copy_untrained_to_host(); !status.ok()) return device_failed(status);
  when_reached(request_.deadline, [this](const Status& status) {
    if (!done_) return;
    status.ok() ? exchange_untrained() : device_failed(status);
  });
}

Status Step::copy_untrained_to_host() {
  for (DeviceContext& context : contexts_) {
    if (context.is_host()) continue;
    if (Status status = context.follow_default_stream(); !status.ok()) return status;
    for (uint32_t r : context.replicas) {
      for (const auto* due : {&untrained_.mean_due, &untrained_.first_due}) {
        for (uint32_t p : *due) {
          Status status = context.queue->copy(untrained_.staging[r][p].get(), model_.bindings[r][p].value,
                                              model_.parameters[p]->nbytes());
          if (!status.ok()) return status;
        }
      }
    }
  }
  return {};
}

const std::byte* Step::untrained_value(uint32_t replica, uint32_t parameter) const {
  const Memory& staging = untrained_.staging[replica][parameter];
  return staging ? bytes(staging) : model_.bindings[replica][parameter].value;
}

void Step::add_up_means() {
  std::vector<double>& sums = untrained_.mean_sums;
  sums.clear();
  for (uint32_t p : untrained_.mean_due) {
    const Parameter& parameter = *model_.parameters[p];
    const size_t begin = sums.size();
    sums.resize(begin + parameter.count);
    for (uint32_t r = 0; r < model_.replicas.size(); ++r) {
      if (request_.weights[r] > 0)
        add_weighted(parameter.dtype, sums.data() + begin, untrained_value(r, p), parameter.count,
                     request_.weights[r]);
    }
  }
}

// Zeros on all workers but the first, so that the sum of the bytes is the first one's values.
void Step::gather_first_values() {
  std::vector<std::byte>& values = untrained_.first_values;
  values.clear();
  const bool is_first = !group_ || group_->ranks.front() == rank();  // no group: the only worker
  for (uint32_t p : untrained_.first_due) {
    const size_t begin = values.size(), nbytes = model_.parameters[p]->nbytes();
    values.resize(begin + nbytes);
    if (is_first && nbytes > 0) std::memcpy(values.data() + begin, untrained_value(0, p), nbytes);
  }
}

void Step::exchange_untrained() {
  add_up_means();
  gather_first_values();
  constexpr size_t kParts = 3;  // the two all-reduces, and this function itself
  const auto exchanged = join(kParts, [this](const Status& status) {
    if (!done_) return;
    if (!status.ok()) return fail(status);
    if (Status given = write_untrained(); !given.ok()) return device_failed(given);
    deliver_values();
  });
  const auto sum = [&](UntrainedSync sync, DType dtype, std::byte* data, size_t count) {
    if (!mesh_ || count == 0) return exchanged({});
    auto shape = shape_of(sync_operation(sync), Kind::kBucket, dtype, Algorithm::kDirect, count);
    shape.reduction = static_cast<uint8_t>(Reduction::kSum);
    auto task = make_all_reduce(*mesh_, shape, strategy_.algorithm,
                                {count, dtype, Reduction::kSum, data, nullptr}, exchanged, group_);
    task.ok() ? static_cast<void>(add(std::move(task).value())) : exchanged(task.status());
  };
  sum(UntrainedSync::kMean, DType::kFloat64, reinterpret_cast<std::byte*>(untrained_.mean_sums.data()),
      untrained_.mean_sums.size());
  sum(UntrainedSync::kFirst, DType::kUint8, untrained_.first_values.data(), untrained_.first_values.size());
  exchanged({});
}

Status Step::write_untrained() {
  for (DeviceContext& context : contexts_) {
    for (uint32_t r : context.replicas) {
      const double* sums = untrained_.mean_sums.data();
      const std::byte* values = untrained_.first_values.data();
      const auto give = [&](uint32_t p, const auto& write) -> Status {
        const Parameter& parameter = *model_.parameters[p];
        std::byte* const value = model_.bindings[r][p].value;
        write(parameter, context.is_host() ? value : bytes(untrained_.staging[r][p]));
        return context.is_host()
                   ? Status()
                   : context.queue->copy(value, untrained_.staging[r][p].get(), parameter.nbytes());
      };
      for (uint32_t p : untrained_.mean_due) {
        Status status = give(p, [&](const Parameter& parameter, std::byte* value) {
          divide_to(parameter.dtype, value, sums, parameter.count, total_weight_);
          sums += parameter.count;
        });
        if (!status.ok()) return status;
      }
      for (uint32_t p : untrained_.first_due) {
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

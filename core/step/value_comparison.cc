#include "core/step/value_comparison.h"

#include "core/reduce/kernels.h"
#include "core/step/divergence.h"

namespace dsgd {

std::pair<size_t, size_t> ValueComparison::range(const Parameter& parameter, uint64_t part) const {
  return {parameter.count * part / parts_, parameter.count * (part + 1) / parts_};
}

Status ValueComparison::make_buffers() {
  size_t nbytes = 0;
  for (const auto& parameter : state_.model.parameters) {
    if (parameter->trained) nbytes += parameter->count * dtype_size(wide(parameter->dtype));
  }
  parts_ = parts_of(nbytes);
  if (!state_.mesh || on_host() || offsets_.size() == state_.model.parameters.size() + 1) return {};
  device::Device& device = *state_.context_of(0).device;
  offsets_.clear();  // of a dsgd_start that failed
  nbytes = 0;
  for (const auto& parameter : state_.model.parameters) {
    offsets_.push_back(nbytes);
    if (parameter->trained)
      nbytes += ((parameter->count / parts_ + 1) * dtype_size(wide(parameter->dtype)) + 15) / 16 * 16;
  }
  offsets_.push_back(nbytes);
  DSGD_RETURN_IF_ERROR(device.new_event().into(&fetched_));
  DSGD_RETURN_IF_ERROR(device.allocate(nbytes).into(&device_values_));
  return device.allocate_staging(nbytes).into(&host_values_);
}

void ValueComparison::fetch(uint64_t part, transport::Time deadline,
                            std::function<void(const Status&)> then) {
  if (on_host()) return then({});
  waiter_.when_usable(
      deadline, [this, part] { return enqueue_fetch(part); },
      [this, deadline, then = std::move(then)](const Status& status) {
        if (!status.ok()) return then(status);
        DeviceContext& context = state_.context_of(0);
        waiter_.after(context.device->name(), *context.queue, *fetched_, deadline, then);
      });
}

// Gathered by the device in one pass.
Status ValueComparison::enqueue_fetch(uint64_t part) {
  DeviceContext& context = state_.context_of(0);
  DSGD_RETURN_IF_ERROR(context.follow_default_stream());
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    values_.clear();
    const size_t element = dtype_size(dtype);
    for (size_t p = 0; p < state_.model.parameters.size(); ++p) {
      const Parameter& parameter = *state_.model.parameters[p];
      if (!parameter.trained || wide(parameter.dtype) != dtype) continue;
      const auto [begin, end] = range(parameter, part);
      if (begin == end) continue;
      values_.add_copy(offsets_[p] / element, end - begin, parameter.dtype,
                       state_.model.bindings[0][p].value + begin * dtype_size(parameter.dtype));
    }
    if (values_.pieces.empty()) continue;
    DSGD_RETURN_IF_ERROR(context.queue->sum(dtype, values_.pieces, values_.terms, device_values_.get()));
  }
  return context.queue->copy(host_values_.get(), device_values_.get(), offsets_.back());
}

// Half types count as float32, which is how a device gives their values.
void ValueComparison::add(ValueDigest& digest, size_t p, uint64_t part) const {
  const Parameter& parameter = *state_.model.parameters[p];
  const auto [begin, end] = range(parameter, part);
  const DType dtype = wide(parameter.dtype);
  const std::byte* values = state_.model.bindings[0][p].value + begin * dtype_size(parameter.dtype);
  std::vector<float> widened;
  if (host_values_) {
    values = bytes(host_values_) + offsets_[p];
  } else if (dtype != parameter.dtype) {
    widened.resize(end - begin);
    weighted_set(parameter.dtype, widened.data(), values, end - begin, 1);  // as a device does
    values = reinterpret_cast<const std::byte*>(widened.data());
  }
  digest.add(dtype, values, end - begin);
}

uint64_t ValueComparison::digest(uint64_t part) const {
  ValueDigest digest;
  for (size_t p = 0; p < state_.model.parameters.size(); ++p) {
    if (state_.model.parameters[p]->trained) add(digest, p, part);
  }
  return digest.result();
}

void ValueComparison::digest_all(transport::Time deadline,
                                 std::function<void(const Status&, std::vector<uint64_t>)> then) {
  digests_ = std::make_shared<std::vector<std::unique_ptr<ValueDigest>>>(state_.model.parameters.size());
  digest_from(0, deadline, std::move(then));
}

// A device gives one part at a time, through the memory that a header's part goes through.
void ValueComparison::digest_from(uint64_t part, transport::Time deadline,
                                  std::function<void(const Status&, std::vector<uint64_t>)> then) {
  if (part == parts_) {
    std::vector<uint64_t> digests;
    for (const auto& digest : *digests_) {
      if (digest) digests.push_back(digest->result());
    }
    digests_.reset();
    return then({}, fold_digests(digests));
  }
  const auto alive = std::weak_ptr(digests_);
  fetch(part, deadline, [this, alive, part, deadline, then = std::move(then)](const Status& status) {
    if (alive.expired()) return;
    if (!status.ok()) return then(status, {});
    for (size_t p = 0; p < digests_->size(); ++p) {
      if (!state_.model.parameters[p]->trained) continue;
      std::unique_ptr<ValueDigest>& digest = (*digests_)[p];
      if (!digest) digest = std::make_unique<ValueDigest>();
      add(*digest, p, part);
    }
    loop_.post([this, alive, part, deadline, then] {
      if (!alive.expired()) digest_from(part + 1, deadline, then);
    });
  });
}

}  // namespace dsgd

// Comparing values: a part of them in each step's header, all of them when nobody has data left and when a
// header's part differs.

#include <cstring>

#include "core/reduce/kernels.h"
#include "core/step/divergence.h"
#include "core/step/step.h"

namespace dsgd {

std::pair<size_t, size_t> Step::digest_range(const Parameter& parameter, uint64_t part) {
  return {parameter.count * part / kDigestParts, parameter.count * (part + 1) / kDigestParts};
}

// Half types count as float32, which is how a device gives their values.
void Step::add_digest(ValueDigest& digest, size_t p, uint64_t part) const {
  const Parameter& parameter = *model_.parameters[p];
  const auto [begin, end] = digest_range(parameter, part);
  const DType dtype = wide(parameter.dtype);
  const std::byte* values = model_.bindings[0][p].value + begin * dtype_size(parameter.dtype);
  std::vector<float> widened;
  if (digest_here_) {
    values = bytes(digest_here_) + digest_offsets_[p];
  } else if (dtype != parameter.dtype) {
    widened.resize(end - begin);
    weighted_set(parameter.dtype, widened.data(), values, end - begin, 1);  // as a device does
    values = reinterpret_cast<const std::byte*>(widened.data());
  }
  digest.add(dtype, values, end - begin);
}

uint64_t Step::value_digest() const {
  ValueDigest digest;
  for (size_t p = 0; p < model_.parameters.size(); ++p) {
    if (model_.parameters[p]->trained) add_digest(digest, p, digest_part());
  }
  return digest.result();
}

std::vector<uint64_t> Step::digests_on_host() const {
  std::vector<uint64_t> digests;
  if (!contexts_[where_[0].first].is_host()) return digests;
  for (size_t p = 0; p < model_.parameters.size(); ++p) {
    if (!model_.parameters[p]->trained) continue;
    // A host may have freed memory of its own before it closes the session. Only dsgd's memory and DLPack
    // tensors are sure to be there.
    const Binding& binding = model_.bindings[0][p];
    if (!binding.memory && !binding.release) {
      digests.push_back(kNotRead);
      continue;
    }
    ValueDigest digest;
    for (uint64_t part = 0; part < kDigestParts; ++part) add_digest(digest, p, part);
    digests.push_back(digest.result());
  }
  return fold_digests(digests);
}

void Step::compare_values(std::function<void()> agreed) {
  digests_.clear();
  digests_.resize(model_.parameters.size());
  digest_from(0, [this, agreed = std::move(agreed)] {
    std::vector<uint64_t> mine;
    for (const auto& digest : digests_) {
      if (digest) mine.push_back(digest->result());
    }
    digests_.clear();
    mine = fold_digests(mine);
    const auto* begin = reinterpret_cast<const std::byte*>(mine.data());
    exchange(shape_of(norms_operation(), Kind::kHeader, DType::kUint8, Algorithm::kOneHop, 0),
             {begin, begin + mine.size() * sizeof mine[0]},
             [this, agreed](const Status& status, const auto& all) {
               if (!done_) return;
               if (!status.ok()) return fail(status);
               std::map<int32_t, std::vector<uint64_t>> digests;
               for (size_t place = 0; place < all.size(); ++place) {
                 std::vector<uint64_t>& theirs = digests[group_->ranks[place]];
                 theirs.resize(all[place].size() / sizeof theirs[0]);
                 if (!theirs.empty())
                   std::memcpy(theirs.data(), all[place].data(), theirs.size() * sizeof theirs[0]);
               }
               const Status same = find_divergence(model_, digests, name());
               if (!same.ok()) return fail(same);
               agreed();
             });
  });
}

// A device gives one part at a time, through the memory that a header's part goes through.
void Step::digest_from(uint64_t part, std::function<void()> digested) {
  const auto add = [this](uint64_t part) {
    for (size_t p = 0; p < digests_.size(); ++p) {
      if (!model_.parameters[p]->trained) continue;
      if (!digests_[p]) digests_[p] = std::make_unique<ValueDigest>();
      add_digest(*digests_[p], p, part);
    }
  };
  DeviceContext& context = contexts_[where_[0].first];
  for (; context.is_host() && part < kDigestParts; ++part) add(part);
  if (part == kDigestParts) return digested();
  if (Status status = fetch_digest_values(part); !status.ok()) return device_failed(status);
  waiter_.after(context.device->name(), *context.queue, *context.reached, request_.deadline,
                [this, add, part, digested = std::move(digested)](const Status& status) {
                  if (!done_) return;
                  if (!status.ok()) return device_failed(status);
                  add(part);
                  digest_from(part + 1, digested);
                });
}

// No worker has data left, and perhaps all workers meet for the last time. With the optimizer `none` the host
// updates its replicas.
void Step::all_done() {
  const Status same = model_.optimizer->is_none() ? Status() : compare_replicas(model_, rank(), name());
  // Fails the session, as a failed device does.
  if (!same.ok() && on_device_failure_) return on_device_failure_(same);
  if (!same.ok()) return fail(same);
  const auto end_step = [this] { request_.wait_for_devices ? end_when_reached(false) : end(); };
  mesh_ ? compare_values(end_step) : end_step();
}

}  // namespace dsgd

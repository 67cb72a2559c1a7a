#include "core/step/step_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace dsgd {
namespace {

// Of a bucket's sums on a device: with all parts of a team's devices, which are of one size.
size_t sums_bytes(const StepState& state, const Bucket& bucket) {
  size_t elements = bucket.elements;
  if (state.path.in_team) {
    const TeamMember& member = state.teams.member(state.rank());
    elements = std::max(elements, Teams::device_part(member, elements) * static_cast<size_t>(member.size));
  }
  return elements * dtype_size(bucket.dtype);
}

// The same elements in ranges that come in order and do not touch.
std::vector<Slice> united(std::vector<Slice> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Slice& a, const Slice& b) { return a.begin < b.begin; });
  std::vector<Slice> apart;
  for (const Slice& range : ranges) {
    if (range.count() == 0) continue;
    if (apart.empty() || apart.back().end < range.begin) {
      apart.push_back(range);
    } else {
      apart.back().end = std::max(apart.back().end, range.end);
    }
  }
  return apart;
}

}  // namespace

std::vector<Slice> trailers_of(const Bucket& bucket) {
  std::vector<Slice> ranges;
  for (const Piece& piece : bucket.pieces) {
    if (ranges.empty() || ranges.back().end != piece.trailer)
      ranges.push_back({piece.trailer, piece.trailer});
    ranges.back().end += kTrailer;
  }
  return ranges;
}

double read_element(DType dtype, const std::byte* data, size_t position) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, data + position * sizeof value, sizeof value);
    return value;
  }
  double value;
  std::memcpy(&value, data + position * sizeof value, sizeof value);
  return value;
}

void write_element(DType dtype, std::byte* data, size_t position, double value) {
  if (dtype == DType::kFloat32) {
    const float narrow = static_cast<float>(value);
    std::memcpy(data + position * sizeof narrow, &narrow, sizeof narrow);
  } else {
    std::memcpy(data + position * sizeof value, &value, sizeof value);
  }
}

bool StepState::reduces_by_teams(const StrategySpec& of) const {
  return teams.any() && (!of.traits().takes_algorithm || of.algorithm->nccl != NcclUse::kNever);
}

bool StepState::all_marked() const {
  return std::all_of(buffers.begin(), buffers.end(),
                     [](const BucketBuffers& bucket) { return bucket.progress.ready; });
}

StepPath StepState::choose_path() const {
  const Traits& traits = strategy.traits();
  StepPath chosen;
  chosen.host_has_replicas = contexts.front().is_host();
  chosen.clips = model.optimizer->clip_norm() > 0;
  chosen.measures_norm = options.gradient_norm || chosen.clips;
  chosen.norm_comes_first = model.loss_scale.on() || chosen.clips;
  chosen.has_owners = mesh && traits.owner_transforms();
  // Not with clipping: the norm is known when all means are, and owners give each out as soon as it is
  // complete.
  chosen.updates_at_owner = mesh && traits.owner_updates() && !model.optimizer->is_none() && !chosen.clips;
  chosen.keeps_copies = chosen.updates_at_owner && strategy.copies > 1 && model.has_state();
  chosen.by_teams = reduces_by_teams(strategy);
  chosen.in_team = collectives && chosen.by_teams;
  chosen.stays_on_device =
      chosen.by_teams ? teams.one_team() && !chosen.has_owners
                      : !mesh && contexts.size() == 1 && !chosen.host_has_replicas && !options.reproducible;
  // Sums that travel as halves are rounded, means would be rounded again: every worker divides.
  chosen.narrows = options.wire != DType::kFloat32 && mesh && !chosen.stays_on_device;
  chosen.transforms = chosen.has_owners && (chosen.updates_at_owner || !chosen.narrows);
  chosen.have_mean = chosen.transforms || options.reproducible;
  chosen.alone_on_device = chosen.stays_on_device && !mesh;
  chosen.updates_early = options.early_update && mesh && chosen.in_team && chosen.stays_on_device &&
                         !chosen.measures_norm && !options.checks_gradients();
  chosen.returns_results = !chosen.stays_on_device && !chosen.in_team;
  chosen.returns_early = chosen.returns_results && (chosen.transforms || !options.reproducible);
  chosen.norms_on_device =
      chosen.measures_norm && !chosen.updates_at_owner && (chosen.stays_on_device || chosen.in_team);
  return chosen;
}

Status StepState::make_buffers() {
  constexpr size_t kAlign = 256;
  buffers.clear();
  buffers.resize(plan.size());
  buffer_bytes = 0;
  // One piece of memory for the sums of all buckets, since NCCL registers each.
  std::vector<size_t> positions = {0};
  for (const Bucket& bucket : plan)
    positions.push_back(positions.back() + (sums_bytes(*this, bucket) + kAlign - 1) / kAlign * kAlign);
  std::vector<Memory> for_team;
  if (path.in_team && !plan.empty()) {
    DSGD_RETURN_IF_ERROR(collectives->allocate(positions.back()).into(&for_team));
  }
  for (size_t b = 0; b < plan.size(); ++b) {
    std::vector<Memory> sums;
    for (const Memory& memory : for_team) sums.emplace_back(memory, bytes(memory) + positions[b]);
    for (size_t c = 0; c < contexts.size() && for_team.empty(); ++c) {
      if (contexts[c].is_host()) {
        sums.emplace_back();
        continue;
      }
      DSGD_RETURN_IF_ERROR(
          contexts[c].device->allocate(sums_bytes(*this, plan[b])).into(&sums.emplace_back()));
    }
    DSGD_RETURN_IF_ERROR(make_bucket_buffers(b, sums));
  }
  return {};
}

// `sums`: on each context's device.
Status StepState::make_bucket_buffers(size_t index, const std::vector<Memory>& sums) {
  const Bucket& bucket = plan[index];
  BucketBuffers& bucket_buffers = buffers[index];
  const size_t nbytes = bucket.elements * dtype_size(bucket.dtype);
  // Zeroed: padding adds nothing. Devices copy from and to what is on the host.
  const auto on_host = [&](size_t size, Memory* memory) -> Status {
    DSGD_RETURN_IF_ERROR(contexts.back().device->allocate_staging(size).into(memory));
    buffer_bytes += size;
    return {};
  };
  // The rest of the bucket is not used.
  const auto parts_on_host = [&](std::vector<Slice> slices, Memory* memory) -> Status {
    const size_t element = dtype_size(bucket.dtype);
    std::vector<device::ByteRange> parts;
    for (const Slice& slice : united(std::move(slices))) {
      parts.push_back({slice.begin * element, slice.end * element});
      buffer_bytes += slice.count() * element;
    }
    return contexts.back().device->allocate_staging_parts(nbytes, std::move(parts)).into(memory);
  };
  const size_t own = static_cast<size_t>(rank());
  const Slice owned = path.has_owners ? Slice{bucket.bounds[own], bucket.bounds[own + 1]}
                      : path.by_teams ? teams.owners(bucket.elements)[own]
                                      : Slice{};
  if (options.checks_gradients()) bucket_buffers.non_finite.resize(bucket.pieces.size());
  if (path.in_team && !path.stays_on_device) {
    std::vector<Slice> used = trailers_of(bucket);
    used.push_back(teams.parts(bucket.elements)[own]);
    used.push_back(owned);
    DSGD_RETURN_IF_ERROR(parts_on_host(std::move(used), &bucket_buffers.data));
  } else if (!path.stays_on_device) {
    DSGD_RETURN_IF_ERROR(on_host(bucket.elements * dtype_size(data_type(bucket)), &bucket_buffers.data));
  } else if (mesh && !path.updates_early) {
    // Room for the trailers, which are the first elements of a bucket without owners.
    DSGD_RETURN_IF_ERROR(
        on_host(kTrailer * bucket.pieces.size() * dtype_size(bucket.dtype), &bucket_buffers.data));
  }
  if (options.reproducible) {
    DSGD_RETURN_IF_ERROR(on_host(nbytes, &bucket_buffers.result));
    DSGD_RETURN_IF_ERROR(on_host(bucket.elements * dtype_size(reproducible::exponent_type(bucket.dtype)),
                                 &bucket_buffers.exponents));
  }
  std::vector<Slice> kept = {owned};
  for (const CopiedRange& range : bucket.copied) {
    if (range.keeper == rank()) kept.push_back({range.begin, range.end});
  }
  if (path.updates_at_owner && !path.host_has_replicas)
    DSGD_RETURN_IF_ERROR(parts_on_host(kept, &bucket_buffers.values));
  if (path.keeps_copies) DSGD_RETURN_IF_ERROR(parts_on_host(kept, &bucket_buffers.copied_means));
  if (path.norms_on_device) {
    bucket_buffers.square_ranges = 0;
    for (const Piece& piece : bucket.pieces)
      bucket_buffers.square_ranges += device::square_ranges(piece.count);
    const size_t nbytes_of_sums = bucket_buffers.square_ranges * sizeof(double);
    DSGD_RETURN_IF_ERROR(on_host(nbytes_of_sums, &bucket_buffers.host_squares));
    DSGD_RETURN_IF_ERROR(
        contexts.front().device->allocate(nbytes_of_sums).into(&bucket_buffers.device_squares));
  }
  bucket_buffers.devices.resize(contexts.size());
  bool data_taken = path.host_has_replicas;
  for (size_t c = 0; c < contexts.size(); ++c) {
    const DeviceContext& context = contexts[c];
    if (context.is_host()) continue;
    DeviceBuffers& on_device = bucket_buffers.devices[c];
    on_device.sums = sums[c];
    // Exact sums are the host's, and so is their check.
    if (options.checks_gradients() && !options.reproducible) {
      const size_t records = bucket.pieces.size() * sizeof(NonFinite);
      DSGD_RETURN_IF_ERROR(on_host(records, &on_device.host_non_finite));
      DSGD_RETURN_IF_ERROR(on_host(records, &on_device.host_zero_counts));
      std::fill_n(static_cast<NonFinite*>(on_device.host_zero_counts.get()), bucket.pieces.size(),
                  NonFinite());
      DSGD_RETURN_IF_ERROR(context.device->allocate(records).into(&on_device.device_non_finite));
    }
    for (auto* mark : {&on_device.summed, &on_device.reached, &on_device.returned}) {
      DSGD_RETURN_IF_ERROR(context.device->new_event().into(mark));
    }
    if (path.stays_on_device) {
      bucket_buffers.means.resize(bucket.pieces.size());
    } else if (path.in_team) {
      continue;  // each device has its part of the bucket's own memory
    } else if (options.reproducible) {
      on_device.fetched.resize(context.replicas.size());
      for (Memory& gradients : on_device.fetched) DSGD_RETURN_IF_ERROR(on_host(nbytes, &gradients));
    } else if (data_taken) {
      DSGD_RETURN_IF_ERROR(on_host(nbytes, &on_device.fetched_sums));
    }
    data_taken = true;
  }
  return {};
}

}  // namespace dsgd

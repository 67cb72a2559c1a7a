#include "core/step/step_state.h"

#include <algorithm>
#include <utility>

namespace dsgd {
namespace {

// All parts of a team's devices, which are of one size.
size_t team_bytes(const StepState& state, const Bucket& bucket) {
  if (!state.path.in_team) return 0;
  const TeamMember& member = state.teams.member(state.rank());
  return Teams::device_part(member, bucket.elements) * static_cast<size_t>(member.size) *
         dtype_size(bucket.dtype);
}

}  // namespace

StepPath StepState::choose_path() const {
  const Traits& traits = strategy.traits();
  StepPath chosen;
  chosen.host_has_replicas = contexts.front().is_host();
  chosen.clips = model.optimizer->clip_norm() > 0;
  chosen.measures_norm = options.gradient_norm || chosen.clips;
  chosen.norm_comes_first = model.loss_scale.on() || chosen.clips;
  chosen.transforms = mesh && traits.owner_transforms();
  // Not with clipping: the norm is known when all means are, and owners give each out as soon as it is
  // complete.
  chosen.updates_at_owner = mesh && traits.owner_updates() && !model.optimizer->is_none() && !chosen.clips;
  chosen.have_mean = chosen.transforms || options.reproducible;
  chosen.by_teams = teams.any() && (!traits.takes_algorithm || strategy.algorithm->nccl != NcclUse::kNever);
  chosen.in_team = has_communicators && chosen.by_teams;
  chosen.stays_on_device =
      chosen.by_teams ? teams.everybody() && !chosen.transforms
                      : !mesh && contexts.size() == 1 && !chosen.host_has_replicas && !options.reproducible;
  chosen.alone_on_device = chosen.stays_on_device && !mesh;
  chosen.returns_results = !chosen.stays_on_device && !chosen.in_team;
  chosen.returns_early = chosen.returns_results && (chosen.transforms || !options.reproducible);
  chosen.norms_on_device =
      chosen.measures_norm && !chosen.updates_at_owner && (chosen.stays_on_device || chosen.in_team);
  return chosen;
}

Status StepState::make_buffers(size_t index) {
  const Bucket& bucket = plan[index];
  BucketBuffers& bucket_buffers = buffers[index];
  const size_t nbytes = bucket.elements * dtype_size(bucket.dtype);
  // Zeroed: padding adds nothing. Devices copy from and to what is on the host.
  const auto on_host = [&](size_t size, Memory* memory) -> Status {
    auto made = contexts.back().device->allocate_staging(size);
    if (!made.ok()) return made.status();
    *memory = std::move(made).value();
    buffer_bytes += size;
    return {};
  };
  Status status;
  if (!path.stays_on_device) {
    status = on_host(bucket.elements * dtype_size(data_type(bucket)), &bucket_buffers.data);
  } else if (mesh) {
    // Trailers: without owners, the first.
    status = on_host(2 * bucket.pieces.size() * dtype_size(bucket.dtype), &bucket_buffers.data);
  }
  if (status.ok() && options.reproducible) {
    status = on_host(nbytes, &bucket_buffers.result);
    if (status.ok())
      status = on_host(bucket.elements * dtype_size(reproducible::exponent_type(bucket.dtype)),
                       &bucket_buffers.exponents);
  }
  if (status.ok() && path.updates_at_owner && !path.host_has_replicas)
    status = on_host(nbytes, &bucket_buffers.values);
  if (status.ok() && path.norms_on_device) {
    bucket_buffers.square_ranges = 0;
    for (const Piece& piece : bucket.pieces)
      bucket_buffers.square_ranges += device::square_ranges(piece.count);
    const size_t nbytes_of_sums = bucket_buffers.square_ranges * sizeof(double);
    status = on_host(nbytes_of_sums, &bucket_buffers.squares_here);
    auto made = contexts.front().device->allocate(nbytes_of_sums);
    if (!made.ok()) return made.status();
    bucket_buffers.squares_there = std::move(made).value();
  }
  bucket_buffers.devices.resize(contexts.size());
  bool data_taken = path.host_has_replicas;
  for (size_t p = 0; p < contexts.size() && status.ok(); ++p) {
    const DeviceContext& context = contexts[p];
    if (context.is_host()) continue;
    DeviceBuffers& on_device = bucket_buffers.devices[p];
    auto sums = context.device->allocate(std::max(nbytes, team_bytes(*this, bucket)));
    if (!sums.ok()) return sums.status();
    on_device.sums = std::move(sums).value();
    for (auto* mark : {&on_device.summed, &on_device.reached, &on_device.returned}) {
      auto made = context.device->new_event();
      if (!made.ok()) return made.status();
      *mark = std::move(made).value();
    }
    if (path.stays_on_device) {
      bucket_buffers.means.resize(bucket.pieces.size());
    } else if (path.in_team) {
      continue;  // each device has its part of the bucket's own memory
    } else if (options.reproducible) {
      on_device.fetched.resize(context.replicas.size());
      for (Memory& gradients : on_device.fetched) {
        if (status.ok()) status = on_host(nbytes, &gradients);
      }
    } else if (data_taken) {
      status = on_host(nbytes, &on_device.fetched_sums);
    }
    data_taken = true;
  }
  return status;
}

}  // namespace dsgd

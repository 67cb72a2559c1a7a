// Data-set sharding. A shard is split by the rank and size of the session's view and may outlive the session.
#include "core/data/shard.h"

#include <limits>
#include <string>

#include "capi/src/call.h"
#include "capi/src/session.h"

struct dsgd_shard : dsgd::capi::Handle {
  static constexpr uint64_t kTag = dsgd::capi::tag_of("shard   ");
  static constexpr const char* kName = "dsgd_shard";
  explicit dsgd_shard(const dsgd::Shard& core) : Handle(kTag), core(core) {}

  dsgd::Shard core;
};

namespace {
constexpr uint32_t kKnownShardFlags = DSGD_SHARD_SEQUENTIAL;
}

using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::is_handle;

extern "C" {

int32_t dsgd_shard_new(const dsgd_session* session, uint64_t samples, uint64_t seed, uint32_t flags,
                       dsgd_shard** shard, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.open(session));
    DSGD_RETURN_IF_ERROR(call.given(shard, "shard"));
    if (flags & ~kKnownShardFlags)
      return call.invalid("flags " + std::to_string(flags) + " has bits that enum dsgd_shard_flag has not");
    if (samples > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return call.invalid("samples is " + std::to_string(samples) + "; indices are int64_t");
    *shard = new dsgd_shard(dsgd::Shard(samples, seed, (flags & DSGD_SHARD_SEQUENTIAL) == 0,
                                        static_cast<uint32_t>(session->core->rank()),
                                        static_cast<uint32_t>(session->core->size())));
    return {};
  });
}

int32_t dsgd_shard_epoch(dsgd_shard* shard, uint64_t epoch, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(shard, "shard"));
    shard->core.seek(epoch, 0);
    return {};
  });
}

int32_t dsgd_shard_seek(dsgd_shard* shard, uint64_t epoch, uint64_t position, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(shard, "shard"));
    if (position > shard->core.samples())
      return call.invalid(
          "position " + std::to_string(position) + " is beyond the " + std::to_string(shard->core.samples()) +
          " samples of an epoch; pass what dsgd_shard_position returned for a data set of the same size");
    shard->core.seek(epoch, position);
    return {};
  });
}

uint64_t dsgd_shard_position(const dsgd_shard* shard) {
  return is_handle(shard) ? shard->core.position() : 0;
}

int32_t dsgd_shard_next(dsgd_shard* shard, int64_t* indices, size_t max, size_t* count, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(shard, "shard"));
    DSGD_RETURN_IF_ERROR(call.given(indices, "indices"));
    DSGD_RETURN_IF_ERROR(call.given(count, "count"));
    if (max == 0) return call.invalid("argument 'max' is 0; give the room in 'indices', at least 1");
    *count = shard->core.next(indices, max);
    return {};
  });
}

uint64_t dsgd_shard_size(const dsgd_shard* shard) { return is_handle(shard) ? shard->core.size() : 0; }
void dsgd_shard_free(dsgd_shard* shard) { dsgd::capi::free_handle(shard); }

}  // extern "C"

// Data-set sharding. A shard is split by the rank and size of the session's view and may outlive the session.
#include "core/data/shard_list.h"

#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "capi/src/call.h"
#include "capi/src/session.h"

struct dsgd_shard : dsgd::capi::HandleOf<dsgd_shard> {
  static constexpr const char* kName = "dsgd_shard";
  dsgd_shard(std::shared_ptr<dsgd::SharedShard> core, std::weak_ptr<dsgd::Session> session)
      : core(std::move(core)), session(std::move(session)) {}

  // Calls use(forced) until it returns true. `forced`: no new deal will come, because the session has ended.
  template <typename Use>
  dsgd::Status when_ready(const Use& use) {
    while (!use(false)) {
      const auto alive = session.lock();
      const dsgd::Status ready = alive ? alive->wait_for_samples(*core) : dsgd::Status();
      if (ready.ok() && alive) continue;
      if (ready.code() == dsgd::Code::kState) return ready;
      use(true);
      break;
    }
    return {};
  }

  const std::shared_ptr<dsgd::SharedShard> core;
  const std::weak_ptr<dsgd::Session> session;
};

namespace {

template <typename Read>
uint64_t shard_number(const dsgd_shard* shard, Read read) {
  if (!dsgd::capi::is_handle(shard)) return 0;
  return shard->core->read(read);
}
}  // namespace

using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::guard_open;

extern "C" {

int32_t dsgd_shard_new(const dsgd_session* session, uint64_t samples, uint64_t seed, uint32_t flags,
                       dsgd_shard** shard, dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.not_null(shard, "shard"));
    DSGD_RETURN_IF_ERROR(call.flags(flags, DSGD_SHARD_SEQUENTIAL, "dsgd_shard_flag"));
    if (samples > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return call.invalid("samples is " + std::to_string(samples) +
                          "; give at most 2^63 - 1, since indices are int64_t");
    *shard = new dsgd_shard(session->core->add_shard(samples, seed, (flags & DSGD_SHARD_SEQUENTIAL) == 0),
                            session->core);
    return {};
  });
}

int32_t dsgd_shard_epoch(dsgd_shard* shard, uint64_t epoch, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(shard, "shard"));
    return shard->when_ready([&](bool forced) { return shard->core->seek(epoch, 0, forced); });
  });
}

int32_t dsgd_shard_seek(dsgd_shard* shard, uint64_t epoch, uint64_t position, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(shard, "shard"));
    const uint64_t samples = shard_number(shard, [](const dsgd::Shard& core) { return core.samples(); });
    if (position > samples)
      return call.invalid(
          "position " + std::to_string(position) + " is beyond the " + std::to_string(samples) +
          " samples of an epoch; pass what dsgd_shard_position returned for a data set of the same size");
    return shard->when_ready([&](bool forced) { return shard->core->seek(epoch, position, forced); });
  });
}

uint64_t dsgd_shard_position(const dsgd_shard* shard) {
  return shard_number(shard, [](const dsgd::Shard& core) { return core.position(); });
}

uint64_t dsgd_shard_current_epoch(const dsgd_shard* shard) {
  return shard_number(shard, [](const dsgd::Shard& core) { return core.epoch(); });
}

int32_t dsgd_shard_next(dsgd_shard* shard, int64_t* indices, size_t max, size_t* count, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(shard, "shard"));
    DSGD_RETURN_IF_ERROR(call.not_null(indices, "indices"));
    DSGD_RETURN_IF_ERROR(call.not_null(count, "count"));
    if (max == 0) return call.invalid("argument 'max' is 0; give the room in 'indices', at least 1");
    return shard->when_ready([&](bool forced) {
      const auto drawn = shard->core->next(indices, max, forced);
      if (drawn) *count = *drawn;
      return drawn.has_value();
    });
  });
}

uint64_t dsgd_shard_size(const dsgd_shard* shard) {
  return shard_number(shard, [](const dsgd::Shard& core) { return core.size(); });
}
void dsgd_shard_free(dsgd_shard* shard) { dsgd::capi::free_handle(shard); }

}  // extern "C"

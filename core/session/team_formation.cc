#include "core/session/team_formation.h"

#include <algorithm>
#include <array>

#include "core/base/views_change.h"
#include "transport/schema/codec.h"

namespace dsgd {

using transport::TeamInvitation;
using transport::WorkerGpus;

std::vector<std::shared_ptr<device::Device>> TeamFormation::gpus() const {
  std::vector<std::shared_ptr<device::Device>> devices;
  for (const auto& replica : state_.model.replicas) {
    if (replica->device->is_host() ||
        std::find(devices.begin(), devices.end(), replica->device) != devices.end())
      continue;
    devices.push_back(replica->device);
  }
  return devices;
}

// The library that this worker's devices reduce with, or why they cannot be in a team.
Result<device::Device::CommunicatorLibrary> TeamFormation::communicator_library() const {
  for (const auto& replica : state_.model.replicas) {
    if (!replica->device->is_host()) continue;
    return Status(
        Code::kUnsupported,
        "this worker has replicas on cpu and on GPUs, so the CPU reduces their gradients; use one worker for "
        "the cpu and another one for the GPUs");
  }
  return gpus().front()->load_communicators(state_.options.nccl_library);
}

void TeamFormation::form(const std::shared_ptr<Call>& call, const StrategySpec& strategy,
                         std::vector<uint32_t> gpus_of, Done done) {
  const AlgorithmChoice& algorithm =
      strategy.traits().takes_algorithm ? strategy.algorithm : state_.options.algorithm;
  const bool demanded = algorithm->nccl == NcclUse::kRequired;
  size_t all_gpus = 0;
  for (uint32_t gpus : gpus_of) all_gpus += gpus;
  const auto fail = [&done](Code code, const std::string& why) {
    done(Status(code, why).with_parameter("algorithm"));
  };
  if (demanded && all_gpus == 0)
    return fail(Code::kInvalidArgument,
                "algorithm = nccl reduces gradients on GPUs, but no worker has a replica on a GPU; use auto");
  if (demanded && state_.options.step.reproducible)
    return fail(Code::kUnsupported,
                "algorithm = nccl cannot be used with reproducible = 1, which reduces on the CPU; use auto");
  if (demanded && state_.options.views_change)
    return fail(Code::kUnsupported,
                "algorithm = nccl cannot be used where " + std::string(kViewsChangeWhen) +
                    ": NCCL does not go on in another view; use auto, or leave all three unset");
  if (algorithm->nccl == NcclUse::kNever || state_.options.step.reproducible || state_.options.views_change ||
      all_gpus < 2)
    return done({});

  std::vector<std::byte> mine;
  if (gpus_of[static_cast<size_t>(state_.rank())] > 0) {
    WorkerGpus own;
    auto library = communicator_library();
    own.unusable = library.status();
    if (library.ok()) own.version = library.value().version;
    if (library.ok()) state_.log->info(library.value().description);
    for (const auto& gpu : gpus()) own.devices.push_back(std::to_array(gpu->identity().bytes));
    mine = transport::encode(own);
  }
  const auto gathered = [this, call, gpus_of, demanded, done](const Status& status, const Calls::Parts& all) {
    if (!status.ok()) return done(status);
    const auto workers = read(all, gpus_of);
    if (!workers.ok()) return done(workers.status());
    auto teams =
        decide_teams(workers.value(), demanded, [this](const std::string& why) { state_.log->warning(why); });
    if (!teams.ok() || !teams.value().any()) return done(teams.status());
    join(call, std::move(teams).value(), done);
  };
  if (!state_.mesh) return gathered({}, {mine});
  state_.calls.exchange(call, Kind::kStart, 2, std::move(mine), gathered);
}

// `encoded`: the messages of all workers, by rank.
Result<std::vector<GpusOfWorker>> TeamFormation::read(const Calls::Parts& encoded,
                                                      const std::vector<uint32_t>& gpus_of) const {
  const bool by_node = state_.mesh && !state_.options.internode_nccl;
  std::vector<GpusOfWorker> workers(encoded.size());
  for (size_t r = 0; r < encoded.size(); ++r) {
    if (gpus_of[r] == 0) continue;
    const int32_t rank = static_cast<int32_t>(r);
    auto gpus = transport::decode_worker_gpus(encoded[r]);
    if (!gpus.ok()) return state_.other_version(rank, gpus.status());
    if (gpus->devices.size() != gpus_of[r]) {
      return state_.other_version(
          rank, Status(Code::kIo, std::to_string(gpus->devices.size()) + " identities of GPUs instead of " +
                                      std::to_string(gpus_of[r])));
    }
    workers[r] = {std::move(gpus).value(), by_node ? state_.mesh->members().view().members[r].machine : ""};
  }
  return workers;
}

void TeamFormation::join(const std::shared_ptr<Call>& call, Teams teams, Done done) {
  const TeamMember member = teams.member(state_.rank());
  const bool in_team = member.size > 1;
  auto queue = in_team ? std::make_unique<device::CollectiveQueue>(state_.loop, gpus()) : nullptr;
  device::CollectiveQueue* const joining = queue.get();
  state_.step.set_teams(std::move(teams), std::move(queue));

  // Either all join or the session fails: a worker that waits for one that cannot join would wait until its
  // deadline.
  const auto joined = [this, call, done](const Status& status) {
    if (!state_.mesh) return done(status);
    if (status.ok()) {
      return state_.calls.exchange(call, Kind::kStart, 4, {},
                                   [done](const Status& met, const auto&) { done(met); });
    }
    const Status why =
        Status(status.code(), "dsgd_start: rank " + std::to_string(state_.rank()) + ": " + status.message())
            .with_rank(state_.rank())
            .with_operation("dsgd_start");
    state_.fail(why, true);
    done(why);
  };
  TeamInvitation mine;
  if (in_team && member.team == state_.rank()) {
    auto id = gpus().front()->new_communicator_id();
    mine.failure = id.status();
    if (id.ok()) mine.communicator = std::to_array(id.value().bytes);
  }
  const auto told = [this, member, joining, joined, done](const Status& status, const Calls::Parts& all) {
    if (!status.ok()) return done(status);
    if (!joining) return joined({});
    auto theirs = transport::decode_team_invitation(all[static_cast<size_t>(member.team)]);
    if (!theirs.ok()) return done(state_.other_version(member.team, theirs.status()));
    if (!theirs->failure.ok()) return joined(of_rank(member.team, theirs->failure));
    device::CommunicatorId id;
    std::copy(theirs->communicator.begin(), theirs->communicator.end(), id.bytes);
    state_.log->info("NCCL reduces the gradients of " + std::to_string(member.size) +
                     " GPUs; this worker has numbers " + std::to_string(member.first) + " to " +
                     std::to_string(member.first + member.devices - 1) + " of them");
    joining->join(id, member.first, member.size, state_.calls.deadline(), joined);
  };
  if (!state_.mesh) return told({}, {transport::encode(mine)});
  state_.calls.exchange(call, Kind::kStart, 3, transport::encode(mine), told);
}

}  // namespace dsgd

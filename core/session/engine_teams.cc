// Forms the teams of workers whose GPU gradients NCCL reduces. All workers agree on them at start.

#include <algorithm>
#include <array>
#include <map>

#include "core/session/engine.h"
#include "transport/schema/codec.h"

namespace dsgd {
namespace {

using transport::TeamInvitation;
using transport::WorkerGpus;

// A reason as its worker gave it, with the worker's rank.
Status of_rank(int32_t rank, const Status& reason) {
  if (reason.ok()) return {};
  return Status(reason.code(), "rank " + std::to_string(rank) + ": " + reason.message()).with_rank(rank);
}

// Returns why these workers cannot be one team, else OK.
Status obstacle(const std::vector<WorkerGpus>& all, const std::vector<int32_t>& ranks) {
  std::map<std::array<uint8_t, 16>, int32_t> holders;
  const int32_t first = ranks.front(), version = all[static_cast<size_t>(first)].version;
  for (int32_t rank : ranks) {
    const WorkerGpus& worker = all[static_cast<size_t>(rank)];
    if (!worker.unusable.ok()) return worker.unusable;
    if (worker.version != version) {
      return Status(Code::kMismatch, "rank " + std::to_string(first) + " and rank " + std::to_string(rank) +
                                         " have different versions of NCCL (" + std::to_string(version) +
                                         " and " + std::to_string(worker.version) +
                                         "); install the same version on all workers")
          .with_rank(rank);
    }
    for (const auto& id : worker.devices) {
      const auto [holder, fresh] = holders.emplace(id, rank);
      if (fresh) continue;
      return Status(Code::kUnsupported,
                    "rank " + std::to_string(holder->second) + " and rank " + std::to_string(rank) +
                        " use one GPU, which NCCL does not allow; give each worker GPUs of its own, or "
                        "give one worker several replicas")
          .with_rank(rank);
    }
  }
  return {};
}

}  // namespace

std::vector<std::shared_ptr<device::Device>> Engine::gpus() const {
  std::vector<std::shared_ptr<device::Device>> devices;
  for (const auto& replica : model_.replicas) {
    if (replica->device->is_host() ||
        std::find(devices.begin(), devices.end(), replica->device) != devices.end())
      continue;
    devices.push_back(replica->device);
  }
  return devices;
}

// The library that this worker's devices reduce with, or why they cannot be in a team.
Result<device::Device::CommunicatorLibrary> Engine::communicator_library() const {
  for (const auto& replica : model_.replicas) {
    if (!replica->device->is_host()) continue;
    return Status(
        Code::kUnsupported,
        "this worker has replicas on cpu and on GPUs, so the CPU reduces their gradients; use one worker for "
        "the cpu and another one for the GPUs");
  }
  return gpus().front()->load_communicators(options_.nccl_library);
}

// Forms teams for the strategy that training begins with. A later strategy may use them or not.
void Engine::form_teams(const std::shared_ptr<Call>& call, const StrategySpec& strategy,
                        std::vector<uint32_t> gpus_of, Done done) {
  const AlgorithmChoice& algorithm =
      strategy.traits().takes_algorithm ? strategy.algorithm : options_.algorithm;
  const bool demanded = algorithm->nccl == NcclUse::kRequired;
  size_t all_gpus = 0;
  for (uint32_t gpus : gpus_of) all_gpus += gpus;
  const auto refuse = [&done](Code code, const std::string& why) {
    done(Status(code, "algorithm = nccl " + why).with_parameter("algorithm"));
  };
  if (demanded && all_gpus == 0)
    return refuse(Code::kInvalidArgument,
                  "reduces gradients of GPUs, but no worker has a replica on a GPU; use auto");
  if (demanded && options_.step.reproducible)
    return refuse(Code::kUnsupported,
                  "cannot be used with reproducible = 1, which reduces on the CPU; use auto");
  if (demanded && options_.views_change)
    return refuse(
        Code::kUnsupported,
        "cannot be used where min_workers or max_workers differs from num_workers, or rejoin_timeout is set: "
        "NCCL does not go on in another view; use auto, or leave all three unset");
  if (algorithm->nccl == NcclUse::kNever || options_.step.reproducible || options_.views_change ||
      all_gpus < 2)
    return done({});

  std::vector<std::byte> mine;
  if (gpus_of[static_cast<size_t>(rank())] > 0) {
    WorkerGpus own;
    auto library = communicator_library();
    own.unusable = library.status();
    if (library.ok()) own.version = library.value().version;
    if (library.ok()) log_->info(library.value().description);
    for (const auto& gpu : gpus()) own.devices.push_back(std::to_array(gpu->identity().bytes));
    mine = transport::encode(own);
  }
  const auto gathered = [this, call, gpus_of, demanded, done](
                            const Status& status, const std::vector<std::vector<std::byte>>& all) {
    if (!status.ok()) return done(status);
    auto teams = compute_teams(all, gpus_of, demanded);
    if (!teams.ok() || !teams.value().any()) return done(teams.status());
    join_team(call, std::move(teams).value(), done);
  };
  if (!mesh_) return gathered({}, {mine});
  calls_.exchange(call, shape_of(0, Kind::kStart, DType::kUint8, Algorithm::kOneHop, 2), std::move(mine),
                  "dsgd_start", gathered);
}

// Computes the teams from the messages of all workers, so all workers get the same result.
Result<Teams> Engine::compute_teams(const std::vector<std::vector<std::byte>>& encoded,
                                    const std::vector<uint32_t>& gpus_of, bool demanded) {
  std::vector<WorkerGpus> workers(encoded.size());
  std::map<std::string, std::vector<int32_t>> candidates;
  for (size_t r = 0; r < encoded.size(); ++r) {
    if (gpus_of[r] == 0) continue;
    const int32_t rank = static_cast<int32_t>(r);
    auto gpus = transport::decode_worker_gpus(encoded[r]);
    if (!gpus.ok()) return other_version(rank, gpus.status());
    if (gpus->devices.size() != gpus_of[r]) {
      return other_version(
          rank, Status(Code::kIo, std::to_string(gpus->devices.size()) + " identities of GPUs instead of " +
                                      std::to_string(gpus_of[r])));
    }
    workers[r] = std::move(gpus).value();
    workers[r].unusable = of_rank(rank, workers[r].unusable);
    const bool by_node = mesh_ && !options_.internode_nccl;
    candidates[by_node ? mesh_->members().view().members[r].machine : ""].push_back(rank);
  }
  std::vector<TeamMember> members(workers.size());
  for (size_t r = 0; r < members.size(); ++r) members[r].team = static_cast<int32_t>(r);
  for (const auto& [machine, ranks] : candidates) {
    int32_t devices = 0;
    for (int32_t r : ranks) devices += static_cast<int32_t>(gpus_of[static_cast<size_t>(r)]);
    if (devices < 2) continue;
    if (Status why = obstacle(workers, ranks); !why.ok()) {
      if (demanded) return std::move(why).with_parameter("algorithm").with_operation("dsgd_start");
      log_->warning("the CPU reduces the gradients of " + std::to_string(devices) +
                    " GPUs: " + why.message());
      continue;
    }
    int32_t first = 0;
    for (int32_t r : ranks) {
      const int32_t own = static_cast<int32_t>(gpus_of[static_cast<size_t>(r)]);
      members[static_cast<size_t>(r)] = {ranks.front(), first, own, devices};
      first += own;
    }
  }
  return Teams(std::move(members));
}

Status Engine::other_version(int32_t rank, const Status& why) const {
  return Status(Code::kMismatch, "dsgd_start: rank " + std::to_string(rank) +
                                     " runs another version of dsgd (" + why.message() +
                                     "); install the same version on all workers")
      .with_rank(rank)
      .with_operation("dsgd_start");
}

void Engine::join_team(const std::shared_ptr<Call>& call, Teams teams, Done done) {
  const TeamMember member = teams.member(rank());
  const bool in_team = member.size > 1;
  auto queue = in_team ? std::make_unique<device::CollectiveQueue>(loop_, gpus()) : nullptr;
  device::CollectiveQueue* const joining = queue.get();
  step_.set_teams(std::move(teams), std::move(queue));

  // Either all join or the session fails: a worker that waits for one that cannot join would wait until its
  // deadline.
  const auto joined = [this, call, done](const Status& status) {
    if (!mesh_) return done(status);
    if (status.ok()) {
      return calls_.exchange(call, shape_of(0, Kind::kStart, DType::kUint8, Algorithm::kOneHop, 4), {},
                             "dsgd_start", [done](const Status& met, const auto&) { done(met); });
    }
    const Status why =
        Status(status.code(), "dsgd_start: rank " + std::to_string(rank()) + ": " + status.message())
            .with_rank(rank())
            .with_operation("dsgd_start");
    fail(why, true);
    done(why);
  };
  TeamInvitation mine;
  if (in_team && member.team == rank()) {
    auto id = gpus().front()->new_communicator_id();
    mine.failure = id.status();
    if (id.ok()) mine.communicator = std::to_array(id.value().bytes);
  }
  const auto told = [this, member, joining, joined, done](const Status& status,
                                                          const std::vector<std::vector<std::byte>>& all) {
    if (!status.ok()) return done(status);
    if (!joining) return joined({});
    auto theirs = transport::decode_team_invitation(all[static_cast<size_t>(member.team)]);
    if (!theirs.ok()) return done(other_version(member.team, theirs.status()));
    if (!theirs->failure.ok()) return joined(of_rank(member.team, theirs->failure));
    device::CommunicatorId id;
    std::copy(theirs->communicator.begin(), theirs->communicator.end(), id.bytes);
    log_->info("NCCL reduces the gradients of " + std::to_string(member.size) +
               " GPUs; this worker has numbers " + std::to_string(member.first) + " to " +
               std::to_string(member.first + member.devices - 1) + " of them");
    joining->join(id, member.first, member.size, calls_.deadline(), joined);
  };
  if (!mesh_) return told({}, {transport::encode(mine)});
  calls_.exchange(call, shape_of(0, Kind::kStart, DType::kUint8, Algorithm::kOneHop, 3),
                  transport::encode(mine), "dsgd_start", told);
}

}  // namespace dsgd

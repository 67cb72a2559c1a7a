#include "core/session/team_decision.h"

#include <array>
#include <map>
#include <utility>

#include "core/device/nccl_version.h"

namespace dsgd {
namespace {

using transport::WorkerGpus;

// Returns why the workers of these ranks cannot be one team, else OK.
Status obstacle(const std::vector<GpusOfWorker>& all, const std::vector<int32_t>& ranks) {
  std::map<std::array<uint8_t, 16>, int32_t> holders;
  const int32_t first = ranks.front(), version = all[static_cast<size_t>(first)].gpus.version;
  for (int32_t rank : ranks) {
    const WorkerGpus& worker = all[static_cast<size_t>(rank)].gpus;
    if (!worker.unusable.ok()) return of_rank(rank, worker.unusable);
    if (worker.version != version) {
      return Status(Code::kMismatch,
                    "rank " + std::to_string(first) + " and rank " + std::to_string(rank) +
                        " have different versions of NCCL (" + device::nccl_version_text(version) + " and " +
                        device::nccl_version_text(worker.version) +
                        "); use one on all workers: `nccl_library` names the library, but an "
                        "NCCL that the process has loaded, such as PyTorch's, comes before it")
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

Status of_rank(int32_t rank, const Status& reason) {
  if (reason.ok()) return {};
  return Status(reason.code(), "rank " + std::to_string(rank) + ": " + reason.message()).with_rank(rank);
}

Result<Teams> decide_teams(const std::vector<GpusOfWorker>& workers, bool demanded,
                           const std::function<void(const std::string&)>& warn) {
  std::vector<TeamMember> members(workers.size());
  std::map<std::string, std::vector<int32_t>> candidates;  // by machine
  for (size_t r = 0; r < workers.size(); ++r) {
    members[r].team = static_cast<int32_t>(r);
    if (!workers[r].gpus.devices.empty()) candidates[workers[r].machine].push_back(static_cast<int32_t>(r));
  }
  const auto devices_of = [&](int32_t rank) {
    return static_cast<int32_t>(workers[static_cast<size_t>(rank)].gpus.devices.size());
  };
  for (const auto& [machine, ranks] : candidates) {
    int32_t devices = 0;
    for (int32_t rank : ranks) devices += devices_of(rank);
    if (devices < 2) continue;
    if (Status why = obstacle(workers, ranks); !why.ok()) {
      if (demanded) return std::move(why).with_parameter("algorithm").with_operation("dsgd_start");
      warn("the CPU reduces the gradients of " + std::to_string(devices) + " GPUs: " + why.message());
      continue;
    }
    int32_t first = 0;
    for (int32_t rank : ranks) {
      members[static_cast<size_t>(rank)] = {ranks.front(), first, devices_of(rank), devices};
      first += devices_of(rank);
    }
  }
  return Teams(std::move(members));
}

}  // namespace dsgd

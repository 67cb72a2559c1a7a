#include "core/membership/rendezvous.h"

#include <algorithm>

#include "core/base/address.h"
#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/membership/text.h"

namespace dsgd {
namespace {

using transport::JoinRequest;
using transport::MemberInfo;

constexpr size_t kLongestList = 16;

// "<prefix>a, b, c", "<prefix>a and 40 more", nothing when there are no items.
std::string list(const std::string& prefix, std::vector<std::string> items) {
  if (items.empty()) return {};
  const size_t total = items.size();
  items.resize(std::min(total, kLongestList));
  return prefix + list_text(items, total);
}

bool same_process(const MemberInfo& a, const MemberInfo& b) {
  return a.host == b.host && a.machine == b.machine && a.pid == b.pid;
}

}  // namespace

Status Rendezvous::check(const JoinRequest& request) const {
  const MemberInfo& member = request.member;
  if (member.worker_id.empty()) {
    return Status(Code::kInvalidArgument, "a worker on host " + member.host + " (pid " +
                                              std::to_string(member.pid) +
                                              ") joins without a worker id; set `worker_id`");
  }
  if (request.num_workers != num_workers_) {
    return Status(Code::kMismatch, "worker " + describe_candidate(member) +
                                       " says num_workers = " + std::to_string(request.num_workers) +
                                       ", the head says num_workers = " + std::to_string(num_workers_) +
                                       "; set `num_workers` to the same number everywhere");
  }
  if (member.rank < -1 || (member.rank >= 0 && static_cast<uint32_t>(member.rank) >= num_workers_)) {
    return Status(Code::kInvalidArgument,
                  "worker " + describe_candidate(member) + " asks for rank " + std::to_string(member.rank) +
                      ", but ranks are 0.." + std::to_string(num_workers_ - 1) +
                      " with num_workers = " + std::to_string(num_workers_) + "; set another `rank` or none");
  }
  return {};
}

// Workers that reach the head from the loopback interface are on the head's machine, even if they report
// another machine name.
Status Rendezvous::check_reachable() const {
  const auto beside_head = [](const Candidate& candidate) {
    return candidate.channel && is_loopback(candidate.channel->address());
  };
  for (const Candidate& local : candidates_) {
    const MemberInfo& member = local.request.member;
    if (!std::all_of(member.addresses.begin(), member.addresses.end(), is_loopback)) continue;
    for (const Candidate& other : candidates_) {
      const MemberInfo& remote = other.request.member;
      if (member.addresses.empty() || remote.machine == member.machine) continue;
      if (beside_head(local) && beside_head(other)) continue;
      return Status(Code::kInvalidArgument,
                    "worker " + describe_candidate(member) + " listens on " + member.addresses.front() +
                        ", which only its own machine reaches, and worker " + describe_candidate(remote) +
                        " is on another one; set `interface` or `listen` of the former to a network "
                        "that both are on")
          .with_parameter("interface");
    }
  }
  return {};
}

Status Rendezvous::admit(Candidate& candidate, Candidate* replaced) {
  if (Status wrong = check(candidate.request); !wrong.ok()) return wrong;
  const MemberInfo& member = candidate.request.member;
  Candidate* own_place = nullptr;
  for (Candidate& other : candidates_) {
    const MemberInfo& holder = other.request.member;
    if (holder.worker_id == member.worker_id) {
      if (!same_process(holder, member)) {
        return Status(Code::kExists,
                      "worker id '" + member.worker_id + "' is taken by a worker on host " + holder.host +
                          " (pid " + std::to_string(holder.pid) +
                          ") that waits for the same job; give each worker its own `worker_id`" +
                          kFirstRankHint);
      }
      own_place = &other;
      continue;
    }
    if (member.rank >= 0 && holder.rank == member.rank) {
      return Status(Code::kExists, "rank " + std::to_string(member.rank) + ", which worker " +
                                       describe_candidate(member) + " asks for, is taken by worker " +
                                       describe_candidate(holder))
          .with_parameter("rank");  // the joiner appends how to choose another one
    }
    if (candidate.request.hosts_head && other.request.hosts_head) {
      return Status(Code::kExists, "worker " + describe_candidate(member) +
                                       " says that it hosts the head, as worker " +
                                       describe_candidate(holder) + " does; only one can");
    }
  }
  if (own_place) {
    *replaced = std::move(*own_place);
    *own_place = std::move(candidate);
  } else {
    candidates_.push_back(std::move(candidate));
  }
  return {};
}

bool Rendezvous::remove(const transport::ServerChannel& channel, MemberInfo* gone) {
  auto it = std::find_if(candidates_.begin(), candidates_.end(),
                         [&](const Candidate& c) { return c.channel == &channel; });
  if (it == candidates_.end()) return false;
  *gone = it->request.member;
  candidates_.erase(it);
  return true;
}

bool Rendezvous::holds(const transport::ServerChannel& channel) const {
  return std::any_of(candidates_.begin(), candidates_.end(),
                     [&](const Candidate& c) { return c.channel == &channel; });
}

std::vector<Rendezvous::Candidate> Rendezvous::take_by_rank() {
  std::vector<Candidate> by_rank(candidates_.size());
  std::vector<Candidate> others;
  for (Candidate& c : candidates_) {
    const int32_t rank = c.request.member.rank;
    if (rank >= 0) {
      by_rank[static_cast<size_t>(rank)] = std::move(c);
    } else {
      others.push_back(std::move(c));
    }
  }
  candidates_.clear();
  std::sort(others.begin(), others.end(), [](const Candidate& a, const Candidate& b) {
    return a.request.member.worker_id < b.request.member.worker_id;
  });
  size_t next = 0;
  for (Candidate& c : others) {
    while (by_rank[next].channel != nullptr) ++next;
    by_rank[next] = std::move(c);
  }
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    by_rank[rank].request.member.rank = static_cast<int32_t>(rank);
  }
  return by_rank;
}

std::vector<int32_t> Rendezvous::missing() const {
  std::vector<bool> come(num_workers_);
  for (const Candidate& c : candidates_) {
    if (c.request.member.rank < 0) return {};
    come[static_cast<size_t>(c.request.member.rank)] = true;
  }
  std::vector<int32_t> ranks;
  for (size_t rank = 0; rank < come.size() && !candidates_.empty(); ++rank)
    if (!come[rank]) ranks.push_back(static_cast<int32_t>(rank));
  return ranks;
}

std::string Rendezvous::progress() const {
  std::vector<std::string> come, not_come;
  for (const Candidate& c : candidates_) come.push_back(describe_candidate(c.request.member));
  for (const int32_t rank : missing()) not_come.push_back(std::to_string(rank));
  std::string text = std::to_string(candidates_.size()) + " of " + std::to_string(num_workers_) +
                     " workers have joined" + list(": ", come) + list("; missing: rank ", not_come);
  if (refused_ > 0) {
    text += "; refused: " + std::to_string(refused_) + " (" + (refused_ > 1 ? "last: " : "") + last_refusal_ +
            ")";
  }
  return text;
}

void Rendezvous::note_refused(const std::string& why) {
  constexpr size_t kLongest = 400;
  ++refused_;
  last_refusal_ = cut(why, kLongest);
}

}  // namespace dsgd

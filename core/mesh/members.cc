#include "core/mesh/members.h"

#include <numeric>

#include "core/base/describe.h"

namespace dsgd {

bool is_break(const Status& status) {
  return status.code() == Code::kWorkerLost || status.code() == Code::kUnreachable ||
         status.code() == Code::kClosed || status.code() == Code::kIo || status.code() == Code::kCorrupted;
}

Status session_closed() { return {Code::kClosed, "the session is closed"}; }

Status call_of_earlier_view() {
  return {Code::kViewChanged,
          "the workers of the job have changed; go on with the next step, or make this call again on all "
          "workers"};
}

Members::Members(const transport::JoinReply& view) : view_(view) {
  std::vector<int32_t> all(view_.members.size());
  std::iota(all.begin(), all.end(), 0);
  world_ = std::make_shared<const Group>(std::move(all), view_.rank);
}

std::vector<int32_t> Members::ranks_in(const Members& before) const {
  std::vector<int32_t> ranks;
  for (const transport::MemberInfo& member : view_.members)
    ranks.push_back(rank_of(before.view().members, member.worker_id));
  return ranks;
}

std::string Members::name(int32_t rank) const {
  if (rank < 0 || rank >= size()) return "rank " + std::to_string(rank);
  return describe_member(view_.members[rank]);
}

std::string Members::names(std::span<const int32_t> ranks) const {
  std::string text;
  for (int32_t rank : ranks) text += (text.empty() ? "" : ", ") + name(rank);
  return text;
}

std::string Members::host_of(int32_t rank) const {
  return rank >= 0 && rank < size() ? view_.members[rank].host : std::string();
}

Status Members::lost_error(int32_t rank, const Status& why) const {
  if (why.code() == Code::kAborted) return why;
  if (why.code() == Code::kCorrupted) {
    return Status(
               Code::kCorrupted,
               "the connection with " + name(rank) + " cannot be trusted: " + why.message() +
                   "; no value of a parameter was changed; start a new session, and have the network and the "
                   "machines checked if it happens again")
        .with_rank(rank, host_of(rank));
  }
  return Status(Code::kWorkerLost, name(rank) + " was lost: its connection with " + name(view_.rank) +
                                       " has ended: " + why.message())
      .with_rank(rank, host_of(rank));
}

Status Members::unreachable_error(int32_t rank, const Status& why) const {
  const transport::MemberInfo& peer = view_.members[rank];
  const std::string address = peer.addresses.empty() ? "no address" : peer.addresses.front();
  return Status(Code::kWorkerLost, name(view_.rank) + " cannot reach " + name(rank) + " at " + address +
                                       ": " + why.message() + "; it is stopped or cut off, or " +
                                       reason_for_cut(listens_on_loopback(peer)))
      .with_rank(rank, peer.host);
}

Status Members::closed_error(int32_t rank) const {
  return Status(Code::kWorkerLost, name(rank) + " has closed its session").with_rank(rank, host_of(rank));
}

Status Members::timeout_error(const std::string& what, const std::string& limit,
                              std::span<const int32_t> missing, std::span<const int32_t> silent) const {
  const int32_t first = missing.empty() ? -1 : missing.front();
  const std::string key = limit.substr(0, limit.find(' '));
  std::string waits = "; all peers have sent their data, but this worker has not finished its part; raise ";
  if (!missing.empty()) {
    waits = "; still waiting for " + names(missing) +
            (silent.empty() ? "" : "; no answer yet from " + names(silent)) +
            "; check these workers, or raise ";
  }
  return Status(Code::kTimeout, what + " within " + limit + waits + key).with_rank(first, host_of(first));
}

}  // namespace dsgd

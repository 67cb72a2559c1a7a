#include "core/membership/member_views.h"

#include <algorithm>
#include <cstddef>

#include "core/base/describe.h"

namespace dsgd {
namespace {

using transport::JoinReply;
using transport::MemberInfo;

const MemberInfo& member_at(const JoinReply& view, int32_t rank) {
  return view.members[static_cast<size_t>(rank)];
}

}  // namespace

JoinReply MemberViews::present_with_learner() const {
  JoinReply view = present_;
  const int32_t host = view.head_rank < 0 ? -1 : member_at(view, view.head_rank).number;
  std::erase_if(view.members, [this](const MemberInfo& member) {
    return std::count(departed_.begin(), departed_.end(), member.number) > 0;
  });
  view.head_rank = -1;
  for (size_t rank = 0; rank < view.members.size(); ++rank) {
    view.members[rank].rank = static_cast<int32_t>(rank);
    if (host >= 0 && view.members[rank].number == host) view.head_rank = static_cast<int32_t>(rank);
  }
  view.rank = static_cast<int32_t>(view.members.size()) - 1;
  return view;
}

int32_t MemberViews::number() const { return first_.rank >= 0 ? own_at_join().number : -1; }
const MemberInfo& MemberViews::own() const { return member_at(present_, present_.rank); }
const MemberInfo& MemberViews::own_at_join() const { return member_at(first_, first_.rank); }

std::string MemberViews::head_host() const {
  return first_.head_rank >= 0 ? member_at(first_, first_.head_rank).host : std::string();
}

// A worker on this machine answers even if the machine is cut off. A worker on the head's machine may be
// silent for the same reason as the head.
std::vector<std::vector<std::string>> MemberViews::remote_peers() const {
  std::vector<std::vector<std::string>> peers;
  for (const MemberInfo& peer : first_.members) {
    const bool here = peer.machine == own_at_join().machine;
    const bool with_head =
        first_.head_rank >= 0 && peer.machine == member_at(first_, first_.head_rank).machine;
    if (!here && !with_head && !peer.addresses.empty()) peers.push_back(peer.addresses);
  }
  return peers;
}

int32_t MemberViews::note_left(int32_t number) {
  const auto one = std::find_if(present_.members.begin(), present_.members.end(),
                                [&](const MemberInfo& m) { return m.number == number; });
  if (one == present_.members.end()) return -1;
  if (one->rank == present_.head_rank) host_left_ = true;
  if (present_.learner) departed_.push_back(number);  // it enters a view without that worker
  return one->rank;
}

bool MemberViews::change(const transport::WatchReply& view) {
  JoinReply next = present_;
  next.view = view.view;
  next.members = view.members;
  next.head_rank = view.head_rank;
  next.paused = view.paused;
  next.rank = rank_of(next.members, own().worker_id);
  next.learner = present_.learner && next.rank < 0;
  if (next.learner) {
    next.rank = static_cast<int32_t>(next.members.size());
    next.members.push_back(own());
    next.members.back().rank = next.rank;
  }
  if (next.rank < 0 || next.view <= present_.view) return false;
  present_ = std::move(next);
  return true;
}

}  // namespace dsgd

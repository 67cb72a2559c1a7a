#include "core/step/teams.h"

#include <algorithm>
#include <map>

namespace dsgd {

namespace {
constexpr size_t kLineElements = 16;  // a cache line of float32
}

Teams::Teams(std::vector<TeamMember> members) : members_(std::move(members)) {
  std::map<int32_t, std::vector<int32_t>> teams;
  for (size_t r = 0; r < members_.size(); ++r) {
    any_ = any_ || members_[r].size > 1;
    teams[members_[r].team].push_back(static_cast<int32_t>(r));
  }
  one_team_ = any_ && teams.size() == 1;
  const auto& first = teams.begin()->second;
  const bool alike = std::all_of(teams.begin(), teams.end(), [&](const auto& team) {
    return std::equal(first.begin(), first.end(), team.second.begin(), team.second.end(),
                      [&](int32_t a, int32_t b) {
                        return member(a).first == member(b).first && member(a).devices == member(b).devices &&
                               member(a).size == member(b).size;
                      });
  });
  if (!alike) return;
  for (auto& [lowest, ranks] : teams) alike_.push_back(std::move(ranks));
}

size_t Teams::device_part(const TeamMember& member, size_t elements) {
  const size_t size = static_cast<size_t>(member.size);
  return ((elements + size - 1) / size + kLineElements - 1) / kLineElements * kLineElements;
}

Slice Teams::part(const TeamMember& member, int32_t k, size_t elements) {
  const size_t each = device_part(member, elements), first = static_cast<size_t>(member.first + k);
  return {std::min(elements, first * each), std::min(elements, (first + 1) * each)};
}

std::vector<Slice> Teams::parts(size_t elements) const {
  std::vector<Slice> parts;
  for (const TeamMember& member : members_) {
    parts.push_back({part(member, 0, elements).begin, part(member, member.devices - 1, elements).end});
  }
  return parts;
}

std::vector<Slice> Teams::owners(size_t elements) const {
  if (alike_.empty()) return slices_between(balanced_slices(elements, static_cast<int32_t>(members_.size())));
  std::vector<Slice> owners(members_.size());
  const std::vector<Slice> all = parts(elements);
  for (size_t m = 0; m < alike_.front().size(); ++m) {
    const Slice part = all[static_cast<size_t>(alike_.front()[m])];
    const std::vector<Slice> shares =
        slices_between(balanced_slices(part.count(), static_cast<int32_t>(alike_.size())));
    for (size_t t = 0; t < alike_.size(); ++t) {
      owners[static_cast<size_t>(alike_[t][m])] = {part.begin + shares[t].begin, part.begin + shares[t].end};
    }
  }
  return owners;
}

}  // namespace dsgd

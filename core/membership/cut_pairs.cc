#include "core/membership/cut_pairs.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/describe.h"

namespace dsgd {

bool CutPairs::note(int32_t number, int32_t peer_number, const std::string& why, transport::Time now) {
  const bool first = pairs_.empty();
  if (pairs_.try_emplace(std::minmax(number, peer_number), why).second) since_ = now;
  return first;
}

bool CutPairs::has(int32_t number) const {
  return std::any_of(pairs_.begin(), pairs_.end(), [this, number](const auto& pair) {
    const auto [low, high] = pair.first;
    return (low == number || high == number) && !has_gone(low) && !has_gone(high);
  });
}

bool CutPairs::has_renewed(int32_t number, transport::Time now) const {
  return now - leases_.silence(static_cast<size_t>(number), now) > since_;
}

CutPairs::Verdict CutPairs::decide(transport::Time now) {
  const auto gone = static_cast<size_t>(std::count_if(pairs_.begin(), pairs_.end(), [this](const auto& pair) {
    return has_gone(pair.first.first) || has_gone(pair.first.second);
  }));
  if (std::exchange(gone_, gone) != gone) since_ = now;
  std::set<int32_t> suspects;
  std::map<int32_t, int> cuts;  // by number
  for (const auto& [pair, why] : pairs_) {
    const auto [low, high] = pair;
    ++cuts[low];
    ++cuts[high];
    if (has_gone(low) || has_gone(high)) continue;
    if (!has_renewed(low, now) || !has_renewed(high, now)) return {.waits = true};
    suspects.insert({low, high});
  }
  if (suspects.empty()) {
    pairs_.clear();
    gone_ = 0;
    return {};
  }
  const auto weight = [&](int32_t number) {
    return std::tuple(cuts[number], !workers_.is_host(static_cast<size_t>(number)), number);
  };
  const int32_t cut_off = *std::max_element(suspects.begin(), suspects.end(),
                                            [&](int32_t a, int32_t b) { return weight(a) < weight(b); });
  const auto index = static_cast<size_t>(cut_off);
  return {.why = error(workers_[index]), .cut_off = index};
}

Status CutPairs::error(const WorkerTable::Worker& cut_off) const {
  std::vector<size_t> others;
  std::string first_why;
  bool loopback = listens_on_loopback(cut_off.info);
  for (const auto& [pair, why] : pairs_) {
    const auto [low, high] = pair;
    const int32_t other = low == cut_off.info.number ? high : low;
    if ((low != cut_off.info.number && high != cut_off.info.number) || has_gone(other)) continue;
    if (others.empty()) first_why = why;
    others.push_back(static_cast<size_t>(other));
    loopback = loopback || listens_on_loopback(workers_[static_cast<size_t>(other)].info);
  }
  return Status(Code::kWorkerLost, describe_member(cut_off.info) + " is cut off from " +
                                       workers_.names(others) + ", though the head reaches all of them (" +
                                       first_why + "); perhaps " + reason_for_cut(loopback))
      .with_rank(cut_off.info.rank, cut_off.info.host);
}

}  // namespace dsgd

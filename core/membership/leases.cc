#include "core/membership/leases.h"

#include <algorithm>

#include "core/base/stopped.h"

namespace dsgd {
namespace {

using transport::Duration;
using transport::Time;

constexpr Duration kShortestLease = std::chrono::milliseconds(4);  // guards against a configuration of 0
constexpr Duration kLongestDrain =
    std::chrono::milliseconds(10);  // enough to read what has arrived; part of "lease + 100 ms"

}  // namespace

Leases::Leases(Duration lease) : lease_(std::max(lease, kShortestLease)) {}

void Leases::begin(size_t workers, Time now) { entries_.assign(workers, Entry{now}); }

void Leases::hold(size_t rank, Time now) {
  if (rank >= entries_.size()) entries_.resize(rank + 1, Entry{.held = false});
  entries_[rank] = Entry{now};
}

void Leases::renew(size_t rank, Time now) {
  entries_[rank].renewed = now;
  entries_[rank].suspected = false;
}

Duration Leases::drain() const { return std::min(kLongestDrain, lease_ / 20); }

Time Leases::next_check(Time now) const {
  Time when = now + lease_ / 4;
  for (const Entry& entry : entries_) {
    if (!entry.held) continue;
    when = std::min(when, entry.suspected ? now + drain() : std::max(now, entry.renewed + lease_));
  }
  return when;
}

Leases::Verdict Leases::check(Time now, Time due) {
  Verdict verdict;
  verdict.late = was_stopped(due, now, lease_);
  for (size_t rank = 0; rank < entries_.size(); ++rank) {
    Entry& entry = entries_[rank];
    if (!entry.held) continue;
    if (verdict.late) {
      renew(rank, now);
    } else if (now >= entry.renewed + lease_) {
      if (entry.suspected) verdict.lost.push_back(rank);
      entry.suspected = true;
    }
  }
  std::stable_sort(verdict.lost.begin(), verdict.lost.end(),
                   [&](size_t a, size_t b) { return entries_[a].renewed < entries_[b].renewed; });
  return verdict;
}

}  // namespace dsgd

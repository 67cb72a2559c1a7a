#include "core/membership/leases.h"

#include <algorithm>

#include "core/base/stopped.h"

namespace dsgd {
namespace {

using transport::Duration;
using transport::Time;

constexpr Duration kShortestLease = std::chrono::milliseconds(4);  // guards against a configuration of 0

}  // namespace

Leases::Leases(Duration lease) : lease_(std::max(lease, kShortestLease)) {}

void Leases::reset(size_t workers, Time now) { entries_.assign(workers, Entry{now, now}); }

void Leases::begin(size_t worker, Time now) {
  if (worker >= entries_.size()) entries_.resize(worker + 1, Entry{.runs = false});
  entries_[worker] = Entry{now, now};
}

void Leases::renew(size_t worker, Time now) {
  extend(worker, now);
  entries_[worker].heard = now;
}

void Leases::extend(size_t worker, Time now) {
  entries_[worker].begun = now;
  entries_[worker].suspected = false;
}

Duration drain_time(Duration lease) {
  constexpr Duration kLongest = std::chrono::milliseconds(10);  // part of "lease + 100 ms"
  return std::min(kLongest, lease / 20);
}

Time Leases::next_check(Time now) const {
  Time when = now + lease_ / 4;
  for (const Entry& entry : entries_) {
    if (!entry.runs) continue;
    when = std::min(when, entry.suspected ? now + drain_time(lease_) : std::max(now, entry.begun + lease_));
  }
  return when;
}

Leases::Verdict Leases::check(Time now, Time due) {
  Verdict verdict;
  verdict.late = was_stopped(due, now, lease_);
  for (size_t worker = 0; worker < entries_.size(); ++worker) {
    Entry& entry = entries_[worker];
    if (!entry.runs) continue;
    if (verdict.late) {
      extend(worker, now);
    } else if (now >= entry.begun + lease_) {
      if (entry.suspected) verdict.lost.push_back(worker);
      entry.suspected = true;
    }
  }
  std::stable_sort(verdict.lost.begin(), verdict.lost.end(),
                   [&](size_t a, size_t b) { return entries_[a].heard < entries_[b].heard; });
  return verdict;
}

}  // namespace dsgd

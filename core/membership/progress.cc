#include "core/membership/progress.h"

#include <algorithm>

namespace dsgd {
namespace {

using transport::Duration;
using transport::Progress;
using transport::Time;
using Activity = Progress::Activity;

constexpr size_t kRateReports = 8;  // the step rate is the mean over this number of reports

}  // namespace

// In a longer time without a report, the worker or the head was stopped or cut off, perhaps with all others.
Duration ProgressTable::counted(const Row& row, Time now) {
  const Duration silence = now - row.arrived;
  return row.interval > Duration{} ? std::min(silence, 2 * row.interval) : silence;
}

void ProgressTable::note(size_t worker, Progress report, Time now) {
  Row& row = rows_[worker];
  const Duration uncounted = now - row.arrived - counted(row, now);
  // After a gap of a lease a wait begins anew: nothing is known of the time between.
  const bool goes_on = is_fresh(row, now) && row.last->activity == Activity::kWaits &&
                       report.activity == Activity::kWaits && row.last->call == report.call &&
                       row.last->present_view == report.present_view;
  row.waits_since = goes_on ? row.waits_since + uncounted : now;
  std::map<int32_t, Time> since;
  if (report.activity == Activity::kWaits) {
    for (const int32_t rank : report.waits_for) {
      const auto before = row.since.find(rank);
      since[rank] = goes_on && before != row.since.end() ? before->second + uncounted : now;
    }
  }
  row.since = std::move(since);
  // A joining worker, or one that loads a checkpoint, starts at a step that it did not compute.
  if (row.last && (row.last->steps == 0 || report.steps < row.last->steps)) row.steps.clear();
  row.steps.emplace_back(now, report.steps);
  if (row.steps.size() > kRateReports) row.steps.pop_front();
  row.interval = row.last ? now - row.arrived : Duration{};
  row.last = std::move(report);
  row.arrived = now;
}

void ProgressTable::describe(size_t worker, Time now, transport::WorkerStatus* status) const {
  const Row& row = rows_[worker];
  if (!row.last) return;
  status->reported = true;
  status->progress = *row.last;
  status->age = now - row.arrived;
  const auto& [begin, first] = row.steps.front();
  const auto& [end, last] = row.steps.back();
  if (end > begin)
    status->steps_per_second =
        static_cast<double>(last - first) / std::chrono::duration<double>(end - begin).count();
}

std::vector<ProgressTable::Straggler> ProgressTable::stragglers(std::span<const Member> members,
                                                                uint64_t view, Duration timeout, size_t least,
                                                                Time now) const {
  std::vector<const Member*> idle;
  std::map<int32_t, Straggler> waited_for;  // by rank
  for (const Member& member : members) {
    const Row& row = rows_[member.worker];
    if (!is_fresh(row, now)) {
      idle.push_back(&member);
      continue;
    }
    if (row.last->present_view != view || row.last->activity == Activity::kBusy) return {};
    if (row.last->activity == Activity::kComputes) {
      idle.push_back(&member);
      continue;
    }
    const Time until = row.arrived + counted(row, now);
    if (until - row.waits_since < timeout) return {};
    for (const auto& [rank, since] : row.since) {
      Straggler& longest = waited_for[rank];
      if (until - since > longest.waited) longest = {.waited = until - since, .waiter = member.worker};
    }
  }
  if (members.size() - idle.size() < least) return {};
  std::vector<Straggler> found;
  for (const Member* member : idle) {
    const auto wait = waited_for.find(member->rank);
    if (wait == waited_for.end() || wait->second.waited < timeout) continue;
    found.push_back({member->worker, wait->second.waited, wait->second.waiter});
  }
  return found;
}

}  // namespace dsgd

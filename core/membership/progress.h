// The workers' reports of their progress, and which of them keep the others waiting. Pure data; the head owns
// it. Times are the head's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "transport/loop.h"
#include "transport/messages.h"

namespace dsgd {

class ProgressTable {
 public:
  // A report counts for a lease.
  explicit ProgressTable(transport::Duration lease) : lease_(lease) {}

  void begin(size_t workers) { rows_.assign(workers, {}); }
  void add() { rows_.emplace_back(); }  // one more worker
  void note(size_t worker, transport::Progress report, transport::Time now);

  // Fills in what the worker has reported.
  void describe(size_t worker, transport::Time now, transport::WorkerStatus* status) const;

  struct Member {
    size_t worker;
    int32_t rank;  // in the view
  };
  struct Straggler {
    size_t worker = 0;
    transport::Duration waited{};  // by the worker that has waited longest
    size_t waiter = 0;             // that worker
  };
  // Returns the workers that have kept all others waiting for `timeout` or longer, if at least `least`
  // workers wait; else none. `members`: all workers of the view that are in the job.
  //
  // A straggler does not wait itself. It computes, or has not reported for a lease. Each other worker waits,
  // so two workers that wait for each other are no stragglers, and neither is one that writes or sends. Where
  // data goes from worker to worker (ring), only the next one names the straggler; the others wait for that
  // one.
  std::vector<Straggler> stragglers(std::span<const Member> members, uint64_t view,
                                    transport::Duration timeout, size_t least, transport::Time now) const;

 private:
  struct Row {
    std::optional<transport::Progress> last;
    transport::Time arrived{};
    transport::Duration interval{};  // between the last two reports; 0: there is one
    // Beginnings of waits, later by the time in them that does not count.
    transport::Time waits_since{};                           // in the present call
    std::map<int32_t, transport::Time> since;                // by rank of last->waits_for
    std::deque<std::pair<transport::Time, uint64_t>> steps;  // arrival and steps of the latest reports
  };
  bool is_fresh(const Row& row, transport::Time now) const { return row.last && now - row.arrived <= lease_; }
  // The part of the time since the last report that counts as a wait: at most twice the interval before.
  static transport::Duration counted(const Row& row, transport::Time now);

  const transport::Duration lease_;
  std::vector<Row> rows_;
};

}  // namespace dsgd

// Pairs of workers that cannot reach each other, though the head reaches both, and which worker is to be
// named for them. Pure data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "core/membership/leases.h"
#include "core/membership/worker_table.h"
#include "transport/messages.h"

namespace dsgd {

class CutPairs {
 public:
  CutPairs(const WorkerTable& workers, const Leases& leases) : workers_(workers), leases_(leases) {}

  // Returns whether the pair is the first one.
  bool note(int32_t number, int32_t peer_number, const std::string& why, transport::Time now);
  bool has(int32_t number) const;  // whether the worker is in a pair of workers that are in the job

  struct Verdict {
    bool waits = false;  // a worker of a pair has not renewed its lease yet
    Status why = {};     // else, of `cut_off`; OK: there is no pair to decide, and all are forgotten
    size_t cut_off = 0;
  };
  // Chooses the worker to remove. Considers pairs whose workers are both in the job. Waits until each has
  // renewed its lease after the last new pair, and after the last loss or departure of a worker of a pair, so
  // a dead worker is found by its lease and not here. Takes the worker in most pairs, where pairs with a
  // worker that has gone count; then one that does not host the head; then the highest number.
  Verdict decide(transport::Time now);

 private:
  bool has_gone(int32_t number) const { return !workers_[static_cast<size_t>(number)].in_job(); }
  bool has_renewed(int32_t number, transport::Time now) const;
  Status error(const WorkerTable::Worker& cut_off) const;

  const WorkerTable& workers_;
  const Leases& leases_;
  // The error of the first report, by pair of numbers, the lower first.
  std::map<std::pair<int32_t, int32_t>, std::string> pairs_;
  size_t gone_ = 0;          // pairs with a worker that has gone
  transport::Time since_{};  // of the last new pair, and of the last change of gone_
};

}  // namespace dsgd

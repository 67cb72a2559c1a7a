// The leases of all workers, as the head counts them: from the receipt of each one's last renewal, or from
// the moment when the head has extended them. Pure data. A worker is known by its number or, while it waits
// for the job to begin, by its slot in the rendezvous.
#pragma once

#include <cstddef>
#include <vector>

#include "transport/loop.h"

namespace dsgd {

// Returns how long messages that have arrived are still read after a lease has ended.
transport::Duration drain_time(transport::Duration lease);

class Leases {
 public:
  explicit Leases(transport::Duration lease);

  void reset(size_t workers, transport::Time now);  // begins the leases of all; earlier ones are forgotten
  void begin(size_t worker, transport::Time now);   // begins the lease of one worker
  void renew(size_t worker, transport::Time now);   // the worker has sent a sign of life
  void extend(size_t worker, transport::Time now);  // it gets one more lease, without a sign of life
  void end(size_t worker) { entries_[worker].runs = false; }  // left or lost: no longer checked
  // Since the last sign of life, or since its lease has begun.
  transport::Duration silence(size_t worker, transport::Time now) const {
    return now - entries_[worker].heard;
  }

  // When to call check: at the next lease's end, and often enough in between to notice that the head itself
  // was late.
  transport::Time next_check(transport::Time now) const;

  struct Verdict {
    // The head was late: every worker gets one more lease, since renewals may be unread.
    bool late = false;
    std::vector<size_t> lost;  // the one that has been silent for longest first
  };
  // `due`: the result of next_check. A lease that is over is checked once more after a few milliseconds, in
  // which renewals that have arrived are read, and only then lost.
  Verdict check(transport::Time now, transport::Time due);

 private:
  struct Entry {
    transport::Time begun{};  // the lease
    transport::Time heard{};  // the last sign of life
    bool runs = true;
    bool suspected = false;  // was over at the last check
  };
  const transport::Duration lease_;
  std::vector<Entry> entries_;  // by worker
};

}  // namespace dsgd

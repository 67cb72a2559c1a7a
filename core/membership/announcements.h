// The head's announcements (news) of the running job, in order, and the calls of the workers that watch for
// them. Pure data; the head owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/membership/worker_table.h"
#include "transport/network.h"

namespace dsgd {

class Announcements {
 public:
  explicit Announcements(const WorkerTable& workers) : workers_(workers) {}

  // Adds an announcement, and returns its sequence. It is not sent before release().
  uint64_t add(transport::WatchReply news);
  // All up to this sequence are durable: answers the workers that watch for it.
  void release(uint64_t sequence);
  // Forgets those that are not durable.
  void drop_unreleased() { announcements_.resize(released_ - confirmed_); }
  uint64_t last() const { return confirmed_ + announcements_.size(); }

  // A worker watches for the first one after `sequence`, which confirms all up to it. An error: `respond` is
  // untouched.
  Status watch(size_t worker, uint64_t sequence, const transport::Responder& respond);
  // Ends the worker's call, if there is one, with this error.
  void end_watch(size_t worker, const Status& why);
  // Its connection has ended.
  void drop_watch(size_t worker) { row(worker).watch = nullptr; }
  // A worker that joins need not be told of those so far.
  void begin_at_last(size_t worker) { row(worker).confirmed = last(); }
  bool has_confirmed_all(size_t worker);

  // ---- the record
  void write(transport::HeadRecord* record);
  void read(const transport::HeadRecord& record);
  // The cause that ended the job; OK: none. It is the last announcement, and stays in the record.
  Status cause() const;

 private:
  struct Row {
    uint64_t confirmed = 0;  // sequence of the last one that the worker has confirmed
    uint64_t from = 0;       // of the parked watch
    transport::Responder watch = {};
  };
  Row& row(size_t worker);
  void answer(Row& row);
  void forget_confirmed();

  const WorkerTable& workers_;
  std::vector<Row> rows_;                             // by number of the worker
  std::vector<transport::WatchReply> announcements_;  // announcements_[i] has sequence confirmed_ + i + 1
  // Sequences: all workers have confirmed those up to `confirmed_`, which are forgotten; those up to
  // `released_` are durable and may be sent.
  uint64_t confirmed_ = 0, released_ = 0;
};

}  // namespace dsgd

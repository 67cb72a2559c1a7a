// The reports of the workers' libraries to this process (the configuration key `supervisor`).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <sys/types.h>

namespace dsgd_tool {

class WorkerReports {
 public:
  WorkerReports();
  ~WorkerReports();
  WorkerReports(const WorkerReports&) = delete;
  WorkerReports& operator=(const WorkerReports&) = delete;

  const std::string& address() const { return address_; }  // value of the key
  int fd() const { return fd_; }                           // readable when there are reports
  void take();                                             // all that have come; never waits
  // One from another supervisor, or of a worker in this process group.
  void note(const std::string& report, pid_t group = 0);
  // Writes reports of waiting and of joining to standard output, for the supervisor of this process.
  void pass_on() { passes_on_ = true; }
  using Worker = std::pair<int, pid_t>;  // its rank and 0; without a rank, -1 and its process group
  void forget(const Worker& worker);     // it has ended
  void reset();                          // all have ended, and others will come
  // Returns the rank that the last failure of `rank` names; or, if that one had failed before, the rank that
  // its failure names, and so on. -1: none.
  int cause(int rank) const;
  bool any_dials() const { return !dialing_.empty(); }  // the head, which has not answered
  const std::string& head_error() const { return head_error_; }
  uint32_t joins() const { return joins_; }                  // of the job, at any time
  bool any_waits() const { return !waiting_.empty(); }       // for the job to begin
  const std::string& progress() const { return progress_; }  // "2 of 4 workers have joined: ..."

 private:
  int fd_ = -1;
  std::string address_, head_error_, progress_;
  struct Cause {
    int rank;
    uint64_t order;  // of the reports of failures
  };
  std::map<int, Cause> causes_;  // by rank
  uint64_t failures_ = 0;
  std::set<Worker> dialing_, waiting_;
  uint32_t joins_ = 0;
  bool passes_on_ = false;
};

}  // namespace dsgd_tool

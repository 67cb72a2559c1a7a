// The reports of the workers' libraries to this process (the configuration key `supervisor`).
#pragma once

#include <map>
#include <set>
#include <string>

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
  void forget(int rank);                                   // this worker has ended
  // The rank where the last failure of worker `rank` comes from: the one that it names, or the one that this
  // one's failure names, and so on; -1: none.
  int cause(int rank) const;
  bool any_dials() const { return !dialing_.empty(); }  // the head, which has not answered
  const std::string& head_error() const { return head_error_; }
  bool any_joined() const { return !joined_.empty(); }  // the job, at any time
  bool has_joined(int rank) const { return joined_.contains(rank); }
  bool any_waits() const { return !waiting_.empty(); }       // for the job to begin
  const std::string& progress() const { return progress_; }  // "2 of 4 workers have come: ..."

 private:
  void note(const std::string& report);

  int fd_ = -1;
  std::string address_, head_error_, progress_;
  std::map<int, int> causes_;                 // by rank
  std::set<int> dialing_, waiting_, joined_;  // ranks
};

}  // namespace dsgd_tool

// A small job in the simulated world whose faults a test chooses: whole sessions, each in a process and on a
// host of its own, that run the test's program and note the result of each call.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/session/session.h"
#include "programs.h"
#include "tests/unit/checkpoint/memory_files.h"
#include "transport/sim/world.h"

namespace dsgd::simulation {

struct ClusterOptions {
  int workers = 2;             // that the job begins with
  int joiners = 0;             // with the next numbers, which start_worker() starts
  bool separate_head = false;  // else worker 0 hosts the head
  bool durable_head = false;   // the head keeps its state on a disk, so that start_head() can start it again
  int head_machines = 1;       // which start_head() takes in turn; they share the disk
  bool files = false;          // workers have the disk, too, for checkpoints
  std::shared_ptr<dsgd_test::MemoryDisk> disk = {};  // with what an earlier job has left there; null: empty
  uint64_t seed = 1;
  std::map<std::string, std::string> settings = {};
  std::map<int, std::map<std::string, std::string>> own_settings = {};  // of one worker, before `settings`
  transport::SimOptions network = {};
  Registered registered = {};  // of all workers
};

struct NotedWarning {  // that a worker has logged
  transport::Time at{};
  std::string text;
};

class Cluster {
 public:
  // The work of worker `rank` between dsgd_init and dsgd_close; it notes its calls with note().
  using Program = std::function<void(Cluster&, Session&, int rank)>;
  int all() const { return options_.workers + options_.joiners; }

  Cluster(ClusterOptions options, Program program);
  ~Cluster();

  // Starts a joiner.
  void start_worker(int rank);
  // Kills the head that was started last.
  void kill_head(transport::Death death);
  // Starts a head again; with several head machines, on the next one.
  void start_head();
  // Starts a head of another job at the address of the last head. The next kill_head() kills it.
  void start_other_head();
  // Runs until every worker that is neither paused nor dead has returned. False: one still runs after
  // `limit`.
  bool run_until_ended(transport::Duration limit);
  bool run_until_noted(int rank, const std::string& name, transport::Duration limit);

  // Blocks the program of worker `rank` for a time of the virtual clock. It makes no call of the session.
  void pass_time(int rank, transport::Duration duration);
  // Runs `call` and remembers its result; true when it succeeded.
  bool note(int rank, const std::string& name, const std::function<Status()>& call);
  const std::vector<NotedCall>& calls(int rank) const { return calls_[static_cast<size_t>(rank)]; }
  const NotedCall* call(int rank, const std::string& name) const;  // the last of this name; null: none
  const NotedCall* first_failure(int rank) const;
  bool finished(int rank) const { return finished_[static_cast<size_t>(rank)]; }
  Session* session(int rank) const { return sessions_[static_cast<size_t>(rank)]; }  // null: not open
  std::string history(int rank) const;                                               // for messages
  std::string histories() const;                                                     // of all workers
  const std::vector<std::string>& log(int rank) const { return logs_[static_cast<size_t>(rank)]; }
  const std::vector<NotedWarning>& warnings(int rank) const { return warnings_[static_cast<size_t>(rank)]; }

  // How the job has ended, as a head of its own says; none: it has not.
  const std::optional<Status>& head_result() const { return head_result_; }

  // Worker `rank`'s process; the head's for -1.
  transport::ProcessId process(int rank) const;
  transport::SimWorld world;
  transport::Time disk_back_at{};  // until then the disk makes no change

  // Adds a parameter and a replica, starts, and steps `steps` times or until a call fails. Step k is noted as
  // "step k".
  static bool train(Cluster& cluster, Session& session, int rank, int steps);

 private:
  class DiskFiles;
  void run_worker(int rank);
  void start_head_process(const std::string& host, const Config& config);
  std::unique_ptr<transport::Environment> with_disk(transport::ProcessId process);

  const ClusterOptions options_;
  const Program program_;
  std::vector<transport::ProcessId> processes_;  // workers, then the separate head
  std::vector<std::vector<NotedCall>> calls_;
  std::vector<std::vector<std::string>> logs_;
  std::vector<std::vector<NotedWarning>> warnings_;
  std::vector<char> finished_;
  std::vector<Session*> sessions_;  // by worker; null: not open
  std::shared_ptr<dsgd_test::MemoryDisk> disk_;
  std::map<std::string, transport::ProcessId> locks_;  // of files, and who has them
  bool stop_head_ = false;
  std::optional<Status> head_result_;
  int heads_ = 0;  // that were started
};

}  // namespace dsgd::simulation

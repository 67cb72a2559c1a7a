// A small job in the simulated world whose faults a test chooses: whole sessions, each in a process and on a
// host of its own, that run the test's program and note the result of each call.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/session/session.h"
#include "transport/sim/world.h"

namespace dsgd::simulation {

struct ClusterOptions {
  int workers = 2;
  bool separate_head = false;  // else worker 0 hosts the head
  uint64_t seed = 1;
  std::map<std::string, std::string> settings = {};
  transport::SimOptions network = {};
  Registered registered = {};  // of all workers
};

struct NotedCall {
  std::string name;
  transport::Time began{}, ended{};
  Status status;
};

class Cluster {
 public:
  // The work of worker `rank` between dsgd_init and dsgd_close; it notes its calls with note().
  using Program = std::function<void(Cluster&, Session&, int rank)>;

  Cluster(ClusterOptions options, Program program);
  ~Cluster();

  // Runs until every worker that is neither paused nor dead has returned. False: one still runs at
  // `deadline`.
  bool run_until_ended(transport::Duration limit);
  bool run_until_noted(int rank, const std::string& name, transport::Duration limit);

  // Runs `call` and remembers its result; true when it succeeded.
  bool note(int rank, const std::string& name, const std::function<Status()>& call);
  const std::vector<NotedCall>& calls(int rank) const { return calls_[static_cast<size_t>(rank)]; }
  const NotedCall* call(int rank, const std::string& name) const;  // the last of this name; null: none
  const NotedCall* first_failure(int rank) const;
  bool finished(int rank) const { return finished_[static_cast<size_t>(rank)]; }
  std::string history(int rank) const;  // for messages
  const std::vector<std::string>& log(int rank) const { return logs_[static_cast<size_t>(rank)]; }

  // Worker `rank`'s process; the head's for -1.
  transport::ProcessId process(int rank) const;
  transport::SimWorld world;

  // Adds a parameter and a replica, starts, and steps `steps` times or until a call fails. Step k is noted as
  // "step k".
  static bool train(Cluster& cluster, Session& session, int rank, int steps);

 private:
  void run_worker(int rank);

  const ClusterOptions options_;
  const Program program_;
  std::vector<transport::ProcessId> processes_;  // workers, then the head that runs apart
  std::vector<std::vector<NotedCall>> calls_;
  std::vector<std::vector<std::string>> logs_;
  std::vector<char> finished_;
  bool stop_head_ = false;
};

}  // namespace dsgd::simulation

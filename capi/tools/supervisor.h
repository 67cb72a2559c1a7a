// Child processes: started in process groups of their own, their output put line by line on ours, and ended
// together. Nothing of them is left when wait() returns or when this process dies.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "capi/tools/group_guard.h"
#include "capi/tools/tool.h"

namespace dsgd_tool {

struct SupervisorOptions {
  std::chrono::milliseconds grace;  // between SIGTERM and SIGKILL
  bool prefix;                      // put [name] before each line
};

struct Child {
  std::string name;
  std::vector<std::string> command;
  std::vector<Setting> settings;  // added to the environment as DSGD_* variables
};

class Supervisor {
 public:
  // To be made before there are threads: it forks, and blocks the signals that it waits for in all threads
  // made later.
  explicit Supervisor(SupervisorOptions options);
  ~Supervisor();  // kills what still runs
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Throws a Failure if the command cannot be started.
  void start(const Child& child);
  // Until all children have ended. 0 if all went well, else the status of the first that failed.
  int wait();

 private:
  struct Running;
  void handle_signals();
  void reap();
  void end_all(int signal);
  void kill_all(int signal);
  bool anything_runs() const;
  int poll_timeout() const;

  const SupervisorOptions options_;
  GroupGuard guard_;
  sigset_t old_mask_;
  int signal_fd_ = -1;
  std::vector<std::unique_ptr<Running>> children_;
  int status_ = 0;
  bool ending_ = false;
  std::chrono::steady_clock::time_point kill_at_ = std::chrono::steady_clock::time_point::max();
};

}  // namespace dsgd_tool

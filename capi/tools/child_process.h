// A child process in a process group of its own, whose output is copied line by line.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capi/tools/group_guard.h"
#include "capi/tools/line_output.h"
#include "capi/tools/tool.h"

namespace dsgd_tool {

std::map<std::string, std::string, std::less<>> own_environment();

struct Child {
  std::string kind, name;  // "worker", "3"
  std::vector<std::string> command;
  std::vector<Setting> settings;  // added to the environment as DSGD_* variables
  // Prefix of each output line; nullopt: the child writes to our output itself.
  std::optional<std::string> prefix;
  // Written to its standard input. That stays open until the child has to end. Then interrupt() takes the
  // place of SIGTERM.
  std::optional<std::string> input = std::nullopt;
  std::function<bool(const std::string&)> on_line = nullptr;  // of its output; true: it has taken the line
  // A helper (the head): it is stopped after the others, and its failure does not end them.
  bool service = false;
  // Ranks first_rank to first_rank + workers - 1 run in this child; -1: none.
  int first_rank = -1, workers = 0;
  std::string worker_id = {};  // of its only worker
};

// A child that has been started.
struct ChildProcess : Child {
  ChildProcess(const Child& child, pid_t pid) : Child(child), pid(pid) {}
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  void write_input();  // as much of `unwritten` as the pipe takes
  void close_input();
  // Writes kInterrupt and closes the input. Returns false if the input is not open.
  bool interrupt();
  bool runs_rank(int rank) const {
    return first_rank >= 0 && first_rank <= rank && rank < first_rank + workers;
  }
  // A worker that runs, and is not known to be on its way out of the job.
  bool is_at_work() const { return pid != 0 && workers > 0 && !dismissed && !left && !lost; }
  bool has_exited() const;

  bool succeeded = false;  // it has ended with status 0
  bool dismissed = false;  // its end has been asked for, and is no failure
  bool left = false;       // it has left the job in good order
  bool lost = false;       // from the job, while the others went on
  // Of a lost one: the next signal that it gets, and when.
  int next_signal = SIGTERM;
  std::chrono::steady_clock::time_point signal_at = std::chrono::steady_clock::time_point::max();
  pid_t pid;  // also its process group; 0 once it has been reaped
  int pidfd = -1, input_fd = -1;
  std::string unwritten;  // rest of `input`
  std::unique_ptr<LineOutput> output, errors;
};

// Returns whether this process runs in this process group. One that has ended, and that its parent has not
// waited for yet, does not.
bool runs_in_group(pid_t pid, pid_t group);

// Forks, and runs the command with `mask` as its signal mask. `guard` watches its group. Throws a Failure if
// the command cannot be started.
std::unique_ptr<ChildProcess> start_child(const Child& child, GroupGuard* guard, const sigset_t& mask);

}  // namespace dsgd_tool

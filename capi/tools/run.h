// Shared by the parts of `dsgd run`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "capi/tools/tool.h"

namespace dsgd_tool {

struct RunOptions {
  uint32_t workers = 1, num_workers = 0, first_rank = 0, restarts = 0;
  std::string head, job, init, file, separator = ":";
  std::vector<std::string> settings;
  double grace_seconds = 10;
  bool join = false, no_prefix = false, verbose = false, supervised = false;
  std::string hosts, hostfile, ssh = "ssh", remote_dsgd;
  std::vector<std::string> variables;  // NAME or NAME=VALUE
};

// An empty variable counts as not set, as in the library.
bool is_set(const char* variable);
// Returns whether the settings or the environment set this key.
bool is_given(const std::string& key, const std::vector<Setting>& settings);
bool head_is_elsewhere(const RunOptions& options);
// Returns the prefix of the output lines of the child `name`. With --no-prefix: nullopt, so that the child
// writes to our output itself, or "" in a supervised `dsgd run`, which copies whole lines.
std::optional<std::string> prefix_of(const RunOptions& options, const std::string& name);
std::string random_token();
// Prints that DSGD_HEAD_STATE is ignored, if it is set. For a job whose head ends with `dsgd run`.
void warn_of_head_state();
// Settings that the command line and its file give to all workers; later ones are stronger.
std::vector<Setting> common_settings(const RunOptions& options);
// Refuses wrong settings before anything runs, so that not each worker reports them.
void check_settings(const std::vector<Setting>& settings);
// Returns the smallest number of workers with which the job goes on after a loss, or waits for others; 0 if
// any loss ends it.
uint32_t least_workers(const std::vector<Setting>& settings);
// Keys that `dsgd run` sets for each worker itself.
bool is_own_key(const std::string& key);
// Returns what to write instead of an option that is named as a configuration key ("--init-timeout"), or "".
std::string remedy_for_key(const std::string& option);

// Runs `words`, the commands with their separators, on several hosts by ssh, with `workers` workers on each
// host that does not give a number itself. `one_command`: there is no separator.
int run_on_hosts(const RunOptions& options, const std::vector<std::string>& words, uint32_t workers,
                 bool one_command);

}  // namespace dsgd_tool

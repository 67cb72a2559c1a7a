// The subcommands of `dsgd`. They use the C ABI, as any host does, and the few other parts of dsgd that
// capi/README.md lists.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dsgd/dsgd.h"

namespace CLI {
class App;  // its header takes seconds to compile, so only what adds options includes it
}

namespace dsgd_tool {

inline constexpr int kExitUsage = 2;
inline constexpr int kMaxWorkers = 65536;  // of one job

// A check of an option whose value is a whole number within these bounds.
std::function<std::string(const std::string&)> whole_number(int least, int most);

// A failure of a dsgd call, or of the system, with what the user has to know.
struct Failure : std::runtime_error {
  explicit Failure(const std::string& text, int32_t status = 0) : std::runtime_error(text), status(status) {}
  int32_t status;  // of the dsgd call; 0: the system failed
};

// Returns the failure of the system call that has just set errno. `what`: "cannot create a pipe".
Failure system_failure(const std::string& what);

// Writes what standard output buffers. Throws a Failure if any of the output is lost.
void flush_output();

// A mistake on the command line: "--env: 'x' is not set here".
struct UsageError : std::runtime_error {
  UsageError(const std::string& where, const std::string& text) : std::runtime_error(where + ": " + text) {}
};

// Throws a Failure with the error's message if a call has failed. The error is taken by reference since the
// call that sets it stands in the same argument list.
void check(int32_t status, dsgd_error* const& error);

// "key=value", as given to --set.
struct Setting {
  std::string key, value;
  std::string variable() const;  // DSGD_KEY
};
Setting parse_setting(const std::string& text);  // throws a UsageError

std::vector<dsgd_config_key> all_keys();

// The line of a log record, behind the name of the program that writes it.
std::string record_text(const char* program, const dsgd_log_record* record);

// Frees what it holds: Owned<dsgd_config, dsgd_config_free>.
template <typename T, void (*kFree)(T*)>
class Owned {
 public:
  explicit Owned(T* handle = nullptr) : handle_(handle) {}
  ~Owned() { kFree(handle_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* get() const { return handle_; }
  T** out() { return &handle_; }

 private:
  T* handle_;
};
using OwnedConfig = Owned<dsgd_config, dsgd_config_free>;
using OwnedHead = Owned<dsgd_head, dsgd_head_free>;

void set_key(const OwnedConfig& config, const std::string& key, const std::string& value);

// Options that `dsgd head`, `dsgd status` and `dsgd scale` share.
struct JobOptions {
  std::string head, job, token, file;
  std::vector<std::string> settings;
};
void add_job_options(CLI::App& app, JobOptions* options);  // but for the one that sets `head`
// Sets the keys of the file, if one is named, then those that have an option, then the arguments of --set.
// `own`: a further option; ignored if its value is empty.
void configure(const OwnedConfig& config, const JobOptions& options, const Setting& own = {});

// The part of the head's status that `dsgd run` follows. Workers are named by their ids.
struct JobState {
  uint32_t wanted_workers = 0, scale_requests = 0;   // of the last dsgd_job_scale; 0: there was none
  std::map<std::string, pid_t> present, left, lost;  // and their processes; `left`: in good order
  bool failed = false;
  uint64_t view = 0;
  // The steps that the workers of the view have made, the fewest and the most. nullopt: some have not
  // reported since they are in this view.
  std::optional<std::pair<uint64_t, uint64_t>> steps;
};
std::optional<JobState> job_state(const OwnedConfig& config);  // nullopt: the head does not answer
// Returns how many of these workers others have started. `own`: the ids of all that this process has started.
uint32_t count_others(const std::map<std::string, pid_t>& workers, const std::set<std::string>& own);

// Each adds its options to a subcommand and returns what runs it; the result is the exit status.
using Command = std::function<int()>;
Command add_config(CLI::App& app);
Command add_head(CLI::App& app);
Command add_status(CLI::App& app);
Command add_scale(CLI::App& app);
// `words`: what stands after the first "--" of the command line.
Command add_run(CLI::App& app, std::vector<std::string> words);

}  // namespace dsgd_tool

// Configuration: one table defines every key; values are strings until a typed getter reads them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/views_change.h"
#include "core/config/nearest.h"
#include "transport/base/status.h"

namespace dsgd {
namespace config {
enum class Type;
}

struct ConfigKey {
  const char* name;           // "heartbeat_interval"
  const char* type;           // "string", "integer", "duration", "size", "switch", "choice"
  const char* default_value;  // as it would be written
  const char* range;          // "1..65536", "simple | ps | allreduce", "PATH"
  const char* help;
  const char* environment;  // "DSGD_HEARTBEAT_INTERVAL"
  config::Type kind;        // how a value is read
};

std::span<const ConfigKey> config_keys();  // in alphabetical order

// A line for the log about the launcher that started this process; "": nothing to say.
struct LauncherNote {
  std::string text;
  bool warning = false;
};

struct PortRange {
  uint16_t first = 0, last = 0;  // 0: any port
};

class Config {
 public:
  // The environment, given as NAME=VALUE pairs (the caller reads it). The values of DSGD_* variables are
  // checked by validate(), not here, so that dsgd_config_new cannot fail. The others are for
  // apply_launcher(), as is the local process of the launcher (see find_launch).
  void set_environment(std::vector<std::pair<std::string, std::string>> variables,
                       std::string launcher_process = "");
  // One more value of a "choice" key: a name that the host has registered.
  void allow(std::string_view key, std::string_view value);
  Status set(std::string_view key, std::string_view value);
  // Text of a configuration file; `name` is for messages ("job.conf:3: ..."). All or nothing.
  Status parse(std::string_view text, const std::string& name);
  // Takes num_workers, rank, head and job from the environment of a foreign launcher (torchrun, mpirun,
  // srun), where nothing else gives them. For workers, before validate(). An error names misspelt variables,
  // as in validate().
  Result<LauncherNote> apply_launcher();
  // Checks what set() and parse() do not: values from the environment, and keys that exclude each other. For
  // a head, algorithm and strategy are not checked: it does not know the names that workers have registered.
  // An error also names each unknown variable that resembles the variable of a key without a value.
  Status validate(bool for_head = false) const;
  // The same for a process that only asks the head: it needs no keys of workers.
  Status validate_client() const;
  // One sentence for each unknown DSGD_* variable, with the nearest known one. It is no error: other software
  // uses such names, too (Kubernetes sets DSGD_HEAD_PORT for a service named dsgd-head). For the log of the
  // session or head.
  std::vector<std::string> warnings(bool for_head = false) const;

  const std::string* get(std::string_view key) const;  // effective value; null: unknown key
  // Typed, for keys whose name is in the table and whose value has been validated. Values that stand for a
  // derived one are resolved here: an empty min_workers or max_workers is num_workers, a heartbeat_interval
  // of 0 a fifth of lease.
  int64_t integer(std::string_view key) const;
  bool flag(std::string_view key) const;
  // The job goes on after a loss, or workers may join it while it runs.
  bool views_change() const {
    return dsgd::views_change(integer("num_workers"), integer("min_workers"), integer("max_workers"),
                              duration("rejoin_timeout"));
  }
  uint64_t size(std::string_view key) const;  // bytes
  std::chrono::nanoseconds duration(std::string_view key) const;
  const std::string& text(std::string_view key) const;
  PortRange ports() const;
  // "RANK, the environment variable of PyTorch that its rank comes from"; "": the rank comes from the key
  // `rank`, if any.
  const std::string& rank_origin() const { return rank_origin_; }
  // Entries of `devices` that belong to the worker with this local rank (see devices_per_worker).
  Result<std::vector<std::string>> devices(uint32_t local_rank) const;

 private:
  Status check_value(const ConfigKey& key, std::string_view value) const;
  Status check_environment(bool for_head) const;
  Status check_together() const;
  Status check_tls() const;
  Result<LauncherNote> read_launcher();
  Status with_misspelt_variables(const Status& status) const;

  bool given(std::string_view key) const;

  std::map<std::string, std::string, std::less<>> set_, file_, environment_, launcher_;
  std::map<std::string, std::string, std::less<>> other_variables_;
  std::string launcher_process_, rank_origin_;
  std::vector<std::string> unknown_variables_;
  std::map<std::string, std::vector<std::string>, std::less<>> allowed_;
};

// Shortest text that reads back as the same number; "nan" whatever the sign.
std::string number_text(double number);

// "key=value" words of option strings ("lr=0.1 momentum=0.9"); for optimizers, strategies and parameter
// settings.
class Options {
 public:
  // Errors name the word, for example: option 'lr:0.1' of optimizer 'sgd' is not key=value.
  static Result<Options> parse(std::string_view text, const std::string& owner);
  // Reads a key into `out` if present and remembers it as known; a bad value is kept as an error for
  // finish().
  void number(std::string_view key, double* out, double minimum, double maximum);
  void integer(std::string_view key, int32_t* out, int32_t minimum, int32_t maximum);
  void flag(std::string_view key, bool* out);
  void choice(std::string_view key, std::string* out, const std::vector<std::string>& choices);
  Status finish();  // first bad value, or an unknown key with the nearest known one

 private:
  const std::string* read(std::string_view key);  // null: not given
  void bad(std::string_view key, const std::string& value, const std::string& expected);

  std::string owner_;
  std::vector<std::pair<std::string, std::string>> words_;
  std::vector<std::string> known_;
  Status first_error_;
};

}  // namespace dsgd

// `dsgd run`: starts the workers of one job on this node and sees them to their end.
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "capi/tools/remote.h"
#include "capi/tools/run.h"
#include "capi/tools/run_words.h"
#include "capi/tools/supervisor.h"
#include "core/config/launcher.h"

namespace dsgd_tool {
namespace {

constexpr double kLongestGrace = 24 * 3600;

// Keys that are different for each worker, or that the workers here decide: what says them instead of --set.
const std::map<std::string, std::string> kOwnKeys = {
    {"embed_head", "it is always 'never', since the head runs here or at --head"},
    {"head", "use --head"},
    {"num_workers", "use -n, and with --head also --num-workers"},
    {"rank", "use --first-rank, with --head"},
    {"supervisor", "leave it out: the workers report to this dsgd run"},
    {"worker_id", "each worker's is worker-RANK"}};

bool head_is_elsewhere(const RunOptions& options) { return !options.head.empty() || is_set("DSGD_HEAD"); }

// Returns what to do instead of setting the key; "" if it may be set.
std::string own_key_fault(const std::string& key) {
  const auto own = kOwnKeys.find(key);
  return own == kOwnKeys.end() ? "" : "dsgd run sets " + key + " itself; " + own->second;
}

void refuse_own_key(const std::string& where, const std::string& key) {
  if (const std::string fault = own_key_fault(key); !fault.empty()) throw UsageError(where, fault);
}

// Returns the settings of the file that the environment does not override; workers inherit the environment
// anyway.
std::vector<Setting> file_settings(const std::string& path) {
  OwnedConfig without(dsgd_config_new()), with(dsgd_config_new());
  dsgd_error* error = nullptr;
  check(dsgd_config_load(with.get(), path.c_str(), &error), error);
  std::vector<Setting> settings;
  for (const auto& key : all_keys()) {
    const std::string value = dsgd_config_value(with.get(), key.name);
    if (value == dsgd_config_value(without.get(), key.name)) continue;
    refuse_own_key("--config " + path, key.name);
    settings.push_back({key.name, value});
  }
  return settings;
}

// Returns the settings of --config and --set; later entries override earlier ones.
std::vector<Setting> given_settings(const RunOptions& options) {
  std::vector<Setting> settings;
  if (!options.file.empty()) settings = file_settings(options.file);
  for (const auto& text : options.settings) {
    const Setting setting = parse_setting(text);
    refuse_own_key("--set " + text, setting.key);
    if (setting.key == "job" && !options.job.empty())
      throw UsageError("--set " + text, "--job names the job already");
    settings.push_back(setting);
  }
  return settings;
}

// Returns the number of workers of the whole job.
uint32_t count_workers(const RunOptions& options, uint32_t local_workers) {
  const uint32_t needed = options.first_rank + local_workers;
  const uint32_t all = options.num_workers ? options.num_workers : needed;
  if (all < needed)
    throw UsageError("--num-workers", std::to_string(all) + " is too few: the ranks here end at " +
                                          std::to_string(needed - 1) + "; give at least " +
                                          std::to_string(needed) +
                                          (options.first_rank ? " or a lower --first-rank" : ""));
  if (all > local_workers && !head_is_elsewhere(options))
    throw UsageError(
        options.num_workers ? "--num-workers" : "--first-rank",
        "workers that are started elsewhere need a head that they can reach: start one with `dsgd head` and "
        "give its address with --head HOST:PORT (or DSGD_HEAD)");
  return all;
}

}  // namespace

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value;
}

std::string random_token() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
    throw Failure(std::string("cannot read random bytes from the system: ") + std::strerror(errno) +
                  "; give --set token=SECRET");
  std::string text;
  for (const unsigned char byte : bytes) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", byte);
    text += pair;
  }
  return text;
}

bool is_own_key(const std::string& key) { return kOwnKeys.contains(key); }

std::string remedy_for_key(const std::string& option) {
  std::string key = option.substr(std::min(option.size(), option.find_first_not_of('-')));
  std::replace(key.begin(), key.end(), '-', '_');
  if (const std::string fault = own_key_fault(key); !fault.empty()) return fault;
  if (key == "token") return "set the environment variable DSGD_TOKEN: other users can read options";
  const OwnedConfig config(dsgd_config_new());
  return dsgd_config_value(config.get(), key.c_str())
             ? key + " is a configuration key: --set " + key + "=VALUE"
             : "";
}

std::vector<Setting> common_settings(const RunOptions& options) {
  auto settings = given_settings(options);
  if (!options.job.empty()) settings.push_back({"job", options.job});
  return settings;
}

void check_settings(const std::vector<Setting>& settings) {
  OwnedConfig config(dsgd_config_new());
  dsgd_error* error = nullptr;
  for (const auto& setting : settings) {
    const int32_t status = dsgd_config_set(config.get(), setting.key.c_str(), setting.value.c_str(), &error);
    // Workers may register other names. A name close to a known one is reported as a typing error.
    const bool registrable = setting.key == "algorithm" || setting.key == "strategy";
    if (status != DSGD_OK && registrable && !std::strstr(dsgd_error_message(error), "did you mean")) {
      dsgd_error_free(error);
      continue;
    }
    check(status, error);
  }
}

namespace {

void apply_to_config(const std::vector<Setting>& settings, const OwnedConfig& config) {
  dsgd_error* error = nullptr;
  for (const auto& setting : settings) {
    if (setting.key == "algorithm" || setting.key == "strategy") continue;  // a head does not use them
    check(dsgd_config_set(config.get(), setting.key.c_str(), setting.value.c_str(), &error), error);
  }
}

// Each `dsgd run` that a launcher starts has a head, and thus a job, of its own.
void warn_if_started_several_times(const std::vector<Setting>& settings) {
  OwnedConfig config(dsgd_config_new());
  apply_to_config(settings, config);
  if (dsgd_config_value(config.get(), "launcher") == std::string("none")) return;
  const auto starter = dsgd::config::find_starter(own_environment());
  if (!starter) return;
  const std::string what = starter->launcher + (starter->understood ? " has" : " seems to have") +
                           " started several `dsgd run` processes (" + starter->evidence +
                           "), and each starts its own job";
  const std::string remedy = starter->understood ? "let it start COMMAND without `dsgd run`, or " : "";
  std::fprintf(stderr, "dsgd run: warning: %s; %sgive all of them one --head, or set launcher=none\n",
               what.c_str(), remedy.c_str());
}

// The log of the head in this process.
struct HeadLog {
  explicit HeadLog(int32_t level) : level(level) {}
  static void take(const dsgd_log_record* record, void* user) {
    if (dsgd_log_record_level(record) > static_cast<const HeadLog*>(user)->level) return;
    std::fprintf(stderr, "dsgd run: %s: %s\n", level_name(dsgd_log_record_level(record)),
                 dsgd_log_record_message(record));
  }
  const int32_t level;  // of the least important records that are printed; -1: none is
};

// Starts a head in this process and tells the workers how to reach it.
void start_head(std::vector<Setting>* settings, HeadLog* log, OwnedHead* head) {
  OwnedConfig config(dsgd_config_new());
  dsgd_error* error = nullptr;
  const bool token_is_given = std::any_of(settings->begin(), settings->end(),
                                          [](const Setting& setting) { return setting.key == "token"; });
  if (!token_is_given && !is_set("DSGD_TOKEN")) settings->push_back({"token", random_token()});
  apply_to_config(*settings, config);
  check(dsgd_config_set(config.get(), "head", "127.0.0.1:0", &error), error);
  check(dsgd_config_set(config.get(), "log_level", "info", &error), error);
  check(dsgd_config_log_hook(config.get(), HeadLog::take, log, &error), error);
  check(dsgd_head_start(config.get(), head->out(), &error), error);
  settings->push_back({"head", dsgd_head_address(head->get())});
}

// Checks rules between keys: starts a head, which does the checks and warns, and stops it at once.
void check_together(std::vector<Setting> settings) {
  HeadLog log(DSGD_LOG_WARNING);
  OwnedHead head;
  start_head(&settings, &log, &head);
}

std::vector<Setting> worker_settings(const RunOptions& options, uint32_t all_workers) {
  auto settings = common_settings(options);
  check_settings(settings);
  settings.push_back({"num_workers", std::to_string(all_workers)});
  settings.push_back({"embed_head", "never"});
  check_together(settings);
  if (!options.head.empty()) {
    settings.push_back({"head", options.head});
    check_settings({settings.back()});
  }
  const bool log_is_given = std::any_of(settings.begin(), settings.end(),
                                        [](const Setting& setting) { return setting.key == "log_to"; });
  if (options.verbose && !log_is_given && !is_set("DSGD_LOG_TO")) settings.push_back({"log_to", "stderr"});
  return settings;
}

int run_workers(const RunOptions& options, const std::vector<std::string>& words) {
  if (options.supervised) {
    take_environment();
    std::printf("%s\n", kGreeting);
    std::fflush(stdout);
  }
  const auto parts = parse_parts(words, options.separator, options.workers);
  uint32_t local_workers = 0;
  for (const auto& part : parts) local_workers += part.workers;
  if (!options.hosts.empty() || !options.hostfile.empty())
    return run_on_hosts(options, words, local_workers, parts.size() == 1);
  const uint32_t all_workers = count_workers(options, local_workers);
  auto settings = worker_settings(options, all_workers);  // reports wrong settings before anything runs

  // Before the head: it blocks signals, and threads inherit that.
  Supervisor supervisor(std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(options.grace_seconds)));
  if (options.supervised) supervisor.end_with(STDIN_FILENO);
  const auto prefix = [&](const std::string& name) {
    return options.no_prefix ? std::optional<std::string>() : "[" + name + "] ";
  };
  if (!options.init.empty()) {
    supervisor.start({"command", "init", {"/bin/sh", "-c", options.init}, settings, prefix("init")});
    if (const int status = supervisor.wait()) return status;
  }

  HeadLog log(options.verbose ? DSGD_LOG_INFO : -1);
  OwnedHead head;
  const bool head_is_here = !head_is_elsewhere(options);
  if (head_is_here) {
    warn_if_started_several_times(settings);
    start_head(&settings, &log, &head);
  }
  // Only the host of rank 0 reports, so that each message appears once.
  const bool reports = !options.supervised || options.first_rank == 0;
  if (reports) {
    const std::string address = head_is_here           ? dsgd_head_address(head.get())
                                : options.head.empty() ? std::getenv("DSGD_HEAD")
                                                       : options.head;
    supervisor.announce_joins(std::make_shared<WaitNote>("the head at " + address, !head_is_here),
                              std::make_shared<WaitNote>("the other workers"));
  }
  uint32_t rank = options.first_rank;
  for (const auto& part : parts) {
    for (uint32_t i = 0; i < part.workers; ++i, ++rank) {
      const std::string name = std::to_string(rank);
      auto own = settings;
      own.push_back({"rank", name});
      own.push_back({"worker_id", "worker-" + name});
      own.push_back({"supervisor", supervisor.address()});
      Child worker{"worker", name, part.command, own, prefix(name)};
      worker.first_rank = static_cast<int>(rank);
      worker.workers = 1;
      supervisor.start(worker);
    }
  }
  const int status = supervisor.wait();
  if (status == 0 && reports && !supervisor.any_joined())
    std::fprintf(stderr,
                 "dsgd run: warning: the commands have ended, but no worker has joined the job: a command "
                 "joins it with dsgd_init (in Python dsgd.init) and the DSGD_* variables that it is "
                 "given\n");
  return status;
}

// CLI11 does not know what comes after "--".
class Usage : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string name) const override {
    return "Usage: " + name + " [OPTIONS] -- COMMAND [ARGUMENT...] [: [-n N] COMMAND [ARGUMENT...]]...\n";
  }
};

}  // namespace

Command add_run(CLI::App& app, std::vector<std::string> words) {
  auto options = std::make_shared<RunOptions>();
  app.formatter(std::make_shared<Usage>());
  app.add_option("-n,--workers", options->workers, "Workers of the first command (default 1)")
      ->check(count_fault);
  app.add_option("--init", options->init,
                 "Shell command to run once on this node before the workers; if it fails, nothing else runs");
  app.add_option("--head", options->head,
                 "Address of a head that runs elsewhere (default: DSGD_HEAD; else a head is started here)");
  app.add_option("--num-workers", options->num_workers,
                 "Workers of the whole job, with --head (default: --first-rank and those here)")
      ->check(whole_number(1, kMostWorkers));
  app.add_option("--first-rank", options->first_rank,
                 "Rank of the first worker here, with --head (default 0)")
      ->check(whole_number(0, kMostWorkers - 1));
  app.add_option("--job", options->job, "Name of the job (default: DSGD_JOB)");
  app.add_option("--set", options->settings,
                 "Another configuration key for head and workers, KEY=VALUE; may be repeated")
      ->take_all();
  app.add_option("--config", options->file,
                 "Configuration file for head and workers, with lines \"key = value\"");
  app.add_option("--grace", options->grace_seconds,
                 "Seconds between SIGTERM and SIGKILL (default 10, at most a day)")
      ->check([](const std::string& text) {
        char* end = nullptr;
        const double seconds = std::strtod(text.c_str(), &end);
        if (end != text.c_str() && *end == 0 && seconds >= 0 && seconds <= kLongestGrace)
          return std::string();
        return "'" + text + "' is not a number of seconds from 0 to " +
               std::to_string(static_cast<int>(kLongestGrace));
      });
  app.add_flag("--no-prefix", options->no_prefix, "Do not put [rank] before the workers' output lines");
  app.add_flag("--verbose", options->verbose,
               "Write the logs of head and workers to standard error (log_to=stderr)");
  app.add_option("--hosts", options->hosts,
                 "Run the commands on these hosts by ssh: HOST,HOST:WORKERS,... (default for each: -n); "
                 "the first also has the head")
      ->check([](const std::string& text) {
        return text.empty()
                   ? std::string("the list is empty; name a host, or leave the option out to run here")
                   : std::string();
      });
  app.add_option("--hostfile", options->hostfile,
                 "File with lines HOST, HOST:WORKERS or HOST slots=WORKERS, as --hosts")
      ->excludes("--hosts");
  app.add_option("--env", options->variables,
                 "With --hosts: an environment variable for the hosts, NAME or NAME=VALUE; may be repeated. "
                 "DSGD_* go along")
      ->take_all();
  app.add_option("--ssh", options->ssh, "With --hosts: ssh and its options (default 'ssh')");
  app.add_option("--remote-dsgd", options->remote_dsgd,
                 "With --hosts: path of dsgd there (default: as here)");
  app.add_flag("--supervised", options->supervised)->group("");  // see remote.h
  app.add_option("--separator", options->separator, "Word between commands (default ':')");
  app.footer(
      "Several commands make one job; ranks are given in order:\n"
      "    dsgd run -n 1 -- ./trainer : -n 2 python3 train.py : -n 1 java -jar trainer.jar\n"
      "Workers get DSGD_HEAD, DSGD_NUM_WORKERS, DSGD_RANK, DSGD_WORKER_ID, DSGD_EMBED_HEAD=never and, if the "
      "head is\n"
      "started here and no token is set, a random DSGD_TOKEN. When one fails, the others get SIGTERM, then "
      "SIGKILL;\n"
      "the exit status is that of the worker that failed first (128 + signal if it was killed). If other "
      "workers report\n"
      "which worker caused the failure, that worker counts as the first, and has half of --grace to end by "
      "itself.\nSIGINT and SIGTERM are passed on.\n"
      "The workers go on if nobody reads their output any more (`| head -1`): the rest of it is lost.\n"
      "On several nodes: dsgd head on one, then on each, with the head's DSGD_TOKEN in the environment:\n"
      "    dsgd run -n 2 --head HOST:PORT --num-workers 4 --first-rank 2 -- COMMAND\n"
      "Or on one, where ssh reaches all of them without a password:\n"
      "    dsgd run --hosts node1,node2 -n 2 -- COMMAND");
  return [options, words = std::move(words)] { return run_workers(*options, words); };
}

}  // namespace dsgd_tool

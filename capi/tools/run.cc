// The command line of `dsgd run`, which starts the workers of one job on this node.
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
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "capi/tools/output_queue.h"
#include "capi/tools/remote.h"
#include "capi/tools/run.h"
#include "capi/tools/run_job.h"
#include "capi/tools/run_words.h"
#include "capi/tools/supervisor.h"

namespace dsgd_tool {
namespace {

constexpr double kLongestGrace = 24 * 3600;
constexpr int kMaxRestarts = 1000000;

// Keys that `dsgd run` sets for each worker itself, each with the advice for a user who sets it by --set.
const std::map<std::string, std::string> kOwnKeys = {
    {"embed_head", "it is always 'never', since the head runs here or at --head"},
    {"head", "use --head"},
    {"head_state",
     "it is always empty, since the head ends with dsgd run; start a head with `dsgd head`, and use --head"},
    {"num_workers", "use -n, and with --head also --num-workers"},
    {"rank", "use --first-rank, with --head"},
    {"supervisor", "leave it out: the workers report to this dsgd run"},
    {"worker_id", "each worker's is worker-RANK, with --join worker-RANDOM"}};

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
  if (options.join) {
    if (!head_is_elsewhere(options))
      throw UsageError("--join",
                       "give the address of the running job's head with --head HOST:PORT (or DSGD_HEAD)");
    if (options.num_workers == 0)
      throw UsageError("--join", "give the number of workers that the job began with: --num-workers N");
    return options.num_workers;
  }
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

bool is_given(const std::string& key, const std::vector<Setting>& settings) {
  return is_set(Setting{key, ""}.variable().c_str()) ||
         std::any_of(settings.begin(), settings.end(), [&](const Setting& one) { return one.key == key; });
}

bool head_is_elsewhere(const RunOptions& options) { return !options.head.empty() || is_set("DSGD_HEAD"); }

void warn_of_head_state() {
  if (!is_set("DSGD_HEAD_STATE")) return;
  print_message(
      "dsgd run: warning: DSGD_HEAD_STATE is ignored, since the head ends with dsgd run; start a head with "
      "`dsgd head`, and the workers with `dsgd run --head`\n");
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

std::optional<std::string> prefix_of(const RunOptions& options, const std::string& name) {
  if (!options.no_prefix) return "[" + name + "] ";
  // The lines of a supervised `dsgd run` must not be mixed with unfinished lines of workers.
  return options.supervised ? std::optional<std::string>("") : std::nullopt;
}

namespace {

std::vector<Setting> worker_settings(const RunOptions& options, uint32_t all_workers) {
  auto settings = common_settings(options);
  settings.push_back({"num_workers", std::to_string(all_workers)});
  settings.push_back({"embed_head", "never"});
  if (!options.head.empty()) settings.push_back({"head", options.head});
  check_settings(settings);
  check_settings_with_head(settings);
  if (options.verbose && !is_given("log_to", settings)) settings.push_back({"log_to", "stderr"});
  return settings;
}

int run_workers(const RunOptions& options, const std::vector<std::string>& words) {
  if (options.supervised) {
    take_environment();
    std::printf("%s\n", kGreeting);
    std::fflush(stdout);
  }
  const auto groups = parse_command_groups(words, options.separator, options.workers);
  uint32_t local_workers = 0;
  for (const auto& group : groups) local_workers += group.workers;
  if (!options.hosts.empty() || !options.hostfile.empty())
    return run_on_hosts(options, words, local_workers, groups.size() == 1);
  if (options.restarts > 0 && head_is_elsewhere(options))
    throw UsageError(
        "--restarts",
        "it needs a head that this `dsgd run` starts; leave out --head and DSGD_HEAD, or leave out "
        "--restarts and start the head again with the workers");
  unsetenv("DSGD_RANK");  // each worker that has a rank gets its own
  const uint32_t all_workers = count_workers(options, local_workers);
  const auto settings = worker_settings(options, all_workers);  // reports wrong settings before anything runs

  // Before the head: it blocks signals, and threads inherit that.
  Supervisor supervisor(std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(options.grace_seconds)));
  if (options.supervised) {
    supervisor.set_supervisor_input(STDIN_FILENO);
    supervisor.reports().pass_on();
  }
  if (!options.init.empty()) {
    supervisor.start(
        {"command", "init", {"/bin/sh", "-c", options.init}, settings, prefix_of(options, "init")});
    if (supervisor.wait() != 0) return supervisor.finish();
  }

  for (uint32_t restarts = options.restarts;;) {
    const int status = run_job(options, groups, settings, &supervisor, &restarts);
    if (status == 0 || restarts == 0 || supervisor.interrupted()) return supervisor.finish();
    --restarts;
    print_message("dsgd run: starting all workers again (restart %u of %u)\n", options.restarts - restarts,
                  options.restarts);
    supervisor.reset();
  }
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
                 "Workers that the job begins with, with --head (default: --first-rank and those here)")
      ->check(whole_number(1, kMaxWorkers));
  app.add_option("--first-rank", options->first_rank,
                 "Rank of the first worker here, with --head (default 0)")
      ->check(whole_number(0, kMaxWorkers - 1));
  app.add_flag(
         "--join", options->join,
         "The workers join a job that already runs, with --head and --num-workers. They have no ranks of "
         "their own: the head gives each a free one, or lets it wait for one")
      ->excludes("--first-rank");
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
                 "the first also has the head. The current folder must be at the same path on all")
      ->check([](const std::string& text) {
        return text.empty()
                   ? std::string("the list is empty; name a host, or leave the option out to run here")
                   : std::string();
      })
      ->excludes("--join");
  app.add_option("--hostfile", options->hostfile,
                 "File with lines HOST, HOST:WORKERS or HOST slots=WORKERS, as --hosts")
      ->excludes("--hosts")
      ->excludes("--join");
  app.add_option(
         "--restarts", options->restarts,
         "Number of restarts after a failure (default 0). If the job goes on without the worker "
         "(min_workers), only that worker is started again; otherwise all workers are, and continue from "
         "their last checkpoint if the program loads it. Not with --head or --join")
      ->check(whole_number(0, kMaxRestarts))
      ->excludes("--hosts")
      ->excludes("--hostfile");
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
      "Workers get DSGD_HEAD, DSGD_NUM_WORKERS, DSGD_RANK, DSGD_WORKER_ID, DSGD_SUPERVISOR,\n"
      "DSGD_EMBED_HEAD=never and, if the head is started here and no token is set, a random DSGD_TOKEN.\n"
      "A command must not end before its worker: its process group is killed then.\n"
      "When one fails and the job cannot go on without it, the others get SIGTERM, then SIGKILL. The exit\n"
      "status is that of the worker that failed first (128 + signal if it was killed). If other workers\n"
      "report which worker caused the failure, that worker counts as the first, and has half of --grace to\n"
      "end by itself. SIGINT and SIGTERM are passed on; one that comes while the workers are being ended\n"
      "kills them. If the reader of the output stalls (a pager), the workers wait when their pipes are "
      "full.\n"
      "After SIGINT or SIGTERM, output that is not read within --grace is discarded; after a second signal,\n"
      "within a second.\n"
      "If the reader of the output closes it (`| head -1`), the workers continue and the remaining output\n"
      "is discarded.\n"
      "On several nodes: dsgd head on one, then on each, with the head's DSGD_TOKEN in the environment:\n"
      "    dsgd run -n 2 --head HOST:PORT --num-workers 4 --first-rank 2 -- COMMAND\n"
      "Or on one, where ssh reaches all of them without a password:\n"
      "    dsgd run --hosts node1,node2 -n 2 -- COMMAND");
  return [options, words = std::move(words)] { return run_workers(*options, words); };
}

}  // namespace dsgd_tool

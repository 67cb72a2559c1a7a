// `dsgd run --hosts`: on each host, ssh starts a `dsgd run` for the workers there. The first host also has a
// `dsgd head`.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "capi/tools/hosts.h"
#include "capi/tools/remote.h"
#include "capi/tools/run.h"
#include "capi/tools/supervisor.h"

namespace dsgd_tool {
namespace {

constexpr std::chrono::seconds kFarewell{5};  // for a remote `dsgd run` to report, after its workers' grace

using Environment = std::map<std::string, std::string>;

// The job's settings and what --env names, for all hosts.
Environment job_environment(const RunOptions& options, const std::vector<Setting>& settings) {
  Environment variables;
  for (const auto& key : all_keys())
    if (is_set(key.environment) && !is_own_key(key.name))
      variables[key.environment] = std::getenv(key.environment);
  for (const auto& setting : settings) variables[setting.variable()] = setting.value;
  if (variables["DSGD_TOKEN"].empty()) variables["DSGD_TOKEN"] = random_token();
  for (const auto& text : options.variables) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    const char* value = equals == std::string::npos ? std::getenv(name.c_str()) : text.c_str() + equals + 1;
    if (name.empty() || !value)
      throw UsageError("--env", "the environment variable '" + name +
                                    "' is not set on this node; set it, or write " +
                                    (name.empty() ? "NAME" : name) + "=VALUE");
    variables[name] = value;
  }
  return variables;
}

std::vector<Host> all_hosts(const RunOptions& options, bool one_command) {
  auto hosts = options.hosts.empty() ? read_hostfile(options.hostfile) : parse_hosts(options.hosts);
  for (const auto& host : hosts)
    if (host.workers && !one_command)
      throw UsageError("--hosts", "host '" + host.name +
                                      "' has a number of workers, which is not possible with "
                                      "several commands; give -n for each command");
  return hosts;
}

// Returns the address at which the head on the first host listens. The workers must be able to reach it; the
// other names need to mean something to ssh only.
std::string head_address(const RunOptions& options, const std::vector<Host>& hosts) {
  if (!options.head.empty()) return options.head;
  std::string why;
  const std::string address = resolve(hosts[0].name, &why);
  const std::string holder =
      "the first host, '" + hosts[0].name.substr(hosts[0].name.find('@') + 1) + "', holds the head, but ";
  if (address.empty())
    throw Failure(holder + "this machine cannot resolve its name (" + why +
                  "); pass --head HOST:PORT, the address at which the workers reach it (port 0: any)");
  for (const auto& host : hosts) {
    if (is_loopback(address) && !is_loopback(resolve(host.name, &why)))
      throw Failure(
          holder + "its address " + address + " cannot be reached from '" + host.name +
          "'; give it a name that resolves to an address the other hosts can reach, or pass --head HOST:PORT "
          "(port 0: any)");
  }
  return address + ":0";
}

std::string remote_dsgd(const RunOptions& options) {
  return options.remote_dsgd.empty() ? std::filesystem::read_symlink("/proc/self/exe").string()
                                     : options.remote_dsgd;
}

std::shared_ptr<WaitNote> ssh_note(const Host& host) {
  auto note = std::make_shared<WaitNote>("ssh to " + host.name);
  note->begin("");
  return note;
}

Child head_child(const RunOptions& options, const Host& host, const std::string& address, uint32_t workers,
                 Environment variables, std::string* started) {
  if (!options.verbose) variables.try_emplace("DSGD_LOG_LEVEL", "warning");
  return {.kind = "head on host",
          .name = host.name,
          .command = ssh_words(options.ssh, host.name,
                               {remote_dsgd(options), "head", "--supervised", "--listen", address,
                                "--num-workers", std::to_string(workers)}),
          .settings = {},
          .prefix = "",
          .input = environment_block(variables),
          .on_line =
              [started](const std::string& line) {
                const size_t at = line.find(kHeadAddress);  // a shell may print text without a newline
                if (at == line.npos) return false;
                *started = line.substr(at + kHeadAddress.size());
                return true;
              },
          .service = true};
}

}  // namespace

int run_on_hosts(const RunOptions& options, const std::vector<std::string>& words, uint32_t workers,
                 bool one_command) {
  if (options.num_workers || options.first_rank)
    throw UsageError("--hosts", "--num-workers and --first-rank follow from the hosts; leave them out");
  const auto hosts = all_hosts(options, one_command);
  const auto workers_on = [&](const Host& host) { return host.workers ? host.workers : workers; };
  uint32_t all_workers = 0;
  for (const auto& host : hosts) all_workers += workers_on(host);
  auto settings = common_settings(options);
  check_settings(settings);
  warn_of_head_state();
  Environment variables = job_environment(options, settings);
  if (options.verbose) variables.try_emplace("DSGD_LOG_TO", "stderr");

  const std::chrono::duration<double> grace(options.grace_seconds);
  Supervisor supervisor(std::chrono::duration_cast<std::chrono::milliseconds>(grace) + kFarewell);
  std::string address;
  supervisor.start(
      head_child(options, hosts[0], head_address(options, hosts), all_workers, variables, &address));
  const auto head_note = ssh_note(hosts[0]);
  supervisor.announce(head_note);
  supervisor.wait_until([&] { return !address.empty(); });
  head_note->end();
  if (address.empty()) {
    if (supervisor.wait() != 0) return supervisor.finish();
    throw Failure("the head on host " + hosts[0].name + " did not start; its messages are above");
  }

  // The head decides whether the job survives the loss of a machine or of its workers.
  settings.push_back({"num_workers", std::to_string(all_workers)});
  supervisor.leave_failures_to_head(least_workers(settings));
  uint32_t rank = 0;
  for (const auto& host : hosts) {
    std::vector<std::string> remote = {remote_dsgd(options),
                                       "run",
                                       "--supervised",
                                       "-n",
                                       std::to_string(host.workers ? host.workers : options.workers),
                                       "--head",
                                       address,
                                       "--num-workers",
                                       std::to_string(all_workers),
                                       "--first-rank",
                                       std::to_string(rank),
                                       "--grace",
                                       std::to_string(options.grace_seconds),
                                       "--separator",
                                       options.separator};
    if (!options.init.empty()) remote.insert(remote.end(), {"--init", options.init});
    if (options.no_prefix) remote.push_back("--no-prefix");
    remote.push_back("--");
    remote.insert(remote.end(), words.begin(), words.end());
    Child child{.kind = "host",
                .name = host.name,
                .command = ssh_words(options.ssh, host.name, remote),
                .settings = {},
                .prefix = "",
                .input = environment_block(variables)};
    const auto note = ssh_note(host);
    supervisor.announce(note);
    child.on_line = [note, &supervisor](const std::string& line) {
      if (line.ends_with(kGreeting)) {
        note->end();
      } else if (line.starts_with(kReport)) {
        supervisor.reports().note(line.substr(kReport.size()));
      } else {
        return false;
      }
      return true;
    };
    child.first_rank = static_cast<int>(rank);
    child.workers = static_cast<int>(workers_on(host));
    supervisor.start(child);
    rank += workers_on(host);
  }
  supervisor.wait();
  return supervisor.finish();
}

}  // namespace dsgd_tool

#include "core/config/config.h"

#include <algorithm>
#include <set>

#include "core/base/integer.h"
#include "core/config/launcher.h"
#include "core/config/table.h"

namespace dsgd {
namespace {

using config::Type;

Status invalid(const std::string& key, const std::string& message) {
  return Status(Code::kInvalidArgument, message).with_parameter(key);
}

Result<const ConfigKey*> known_key(std::string_view key) {
  if (const ConfigKey* known = config::find_key(key)) return known;
  const std::string name(key.substr(0, 80));
  return invalid(name, "unknown key '" + name + "'" +
                           did_you_mean(key, config::key_names(), "; `dsgd config` lists all keys"));
}

// A '#' begins a comment at the start of a line or after a blank, so that it may stand inside a value.
std::string_view without_comment(std::string_view line) {
  for (size_t i = 0; i < line.size(); ++i)
    if (line[i] == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) return line.substr(0, i);
  return line;
}

}  // namespace

void Config::set_environment(std::vector<std::pair<std::string, std::string>> variables,
                             std::string launcher_process) {
  environment_.clear();
  other_variables_.clear();
  unknown_variables_.clear();
  launcher_process_ = std::move(launcher_process);
  for (auto& [name, value] : variables) {
    if (!name.starts_with("DSGD_")) {
      other_variables_[std::move(name)] = std::move(value);
      continue;
    }
    bool known = false;
    for (const ConfigKey& key : config_keys()) {
      if (name != key.environment) continue;
      environment_[key.name] = std::move(value);
      known = true;
      break;
    }
    if (!known) unknown_variables_.push_back(std::move(name));
  }
}

void Config::allow(std::string_view key, std::string_view value) {
  allowed_[std::string(key)].emplace_back(value);
}

Status Config::check_value(const ConfigKey& key, std::string_view value) const {
  const auto more = allowed_.find(std::string_view(key.name));
  return config::check_value(key, value, more == allowed_.end() ? std::vector<std::string>() : more->second);
}

Status Config::set(std::string_view key, std::string_view value) {
  const Result<const ConfigKey*> known = known_key(key);
  if (!known.ok()) return known.status();
  Status status = check_value(*known.value(), value);
  if (status.ok()) set_[std::string(key)] = value;
  return status;
}

Status Config::parse(std::string_view text, const std::string& name) {
  std::map<std::string, std::string, std::less<>> values;
  std::map<std::string, size_t, std::less<>> lines;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = config::trim(without_comment(text.substr(0, end)));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty()) continue;
    const std::string where = name + ":" + std::to_string(number) + ": ";
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos)
      return Status(Code::kInvalidArgument,
                    where + "'" + std::string(line.substr(0, 80)) + "' is not key = value");
    const std::string key(config::trim(line.substr(0, equals)));
    const std::string value(config::trim(line.substr(equals + 1)));
    const Result<const ConfigKey*> known = known_key(key);
    Status status = known.ok() ? check_value(*known.value(), value) : known.status();
    if (!status.ok()) return invalid(status.parameter(), where + status.message());
    if (const auto [first, fresh] = lines.try_emplace(key, number); !fresh)
      return invalid(key, where + "key '" + key + "' was given in line " + std::to_string(first->second) +
                              " already; remove one of them");
    values[key] = value;
  }
  for (auto& [key, value] : values) file_[key] = std::move(value);
  return {};
}

bool Config::given(std::string_view key) const {
  for (const auto* layer : {&set_, &environment_, &file_})
    if (const auto found = layer->find(key); found != layer->end()) return !found->second.empty();
  return false;
}

Result<LauncherNote> Config::apply_launcher() {
  auto note = read_launcher();
  if (!note.ok()) return with_misspelt_variables(note.status());
  return note;
}

Result<LauncherNote> Config::read_launcher() {
  if (text("launcher") == "none") return LauncherNote{};
  if (given("head") && given("num_workers") && given("rank")) return LauncherNote{};
  auto found = config::find_launch(other_variables_, launcher_process_);
  if (!found.ok()) return found.status();
  if (!found.value()) {
    if (given("head") || given("num_workers")) return LauncherNote{};
    return LauncherNote{config::unknown_launcher_warning(other_variables_), true};
  }
  const config::Launch& launch = *found.value();
  // num_workers is set explicitly and differs from the launcher's, or is 1: ignore the launcher.
  if (given("num_workers") && (integer("num_workers") != launch.size || launch.size <= 1))
    return LauncherNote{};
  if (launch.rank >= launch.size)
    return invalid("rank", launch.rank_variable + "=" + std::to_string(launch.rank) + " of " +
                               launch.launcher + " is not below " + launch.size_variable + "=" +
                               std::to_string(launch.size) +
                               "; correct it, or set launcher=none to ignore this launcher");
  const auto fill = [this](const std::string& key, std::string value) {
    if (given(key)) return;
    for (auto* layer : {&set_, &environment_, &file_}) layer->erase(key);  // an empty value
    launcher_[key] = std::move(value);
  };
  fill("num_workers", std::to_string(launch.size));
  fill("rank", std::to_string(launch.rank));
  if (launcher_.contains("rank"))
    rank_origin_ = launch.rank_variable + ", the environment variable of " + launch.launcher +
                   " that its rank comes from";
  if (!given("head")) {
    const int64_t port = integer("launcher_port") ? integer("launcher_port") : launch.port;
    if (launch.host.empty() || port == 0) {
      std::string problem = launch.host.empty() ? launch.no_host : launch.no_port;
      problem += problem.empty()
                     ? "they run on several hosts, and the environment does not name the host of rank 0: "
                     : ", or ";
      return invalid("head",
                     launch.launcher + ": this is one of " + std::to_string(launch.size) + " workers, but " +
                         problem +
                         "set head (DSGD_HEAD) to HOST:PORT, an address of rank 0's host, on all workers; "
                         "num_workers=1 (DSGD_NUM_WORKERS=1) trains alone");
    }
    fill("head", launch.host + ":" + std::to_string(port));
    fill("job", launch.job);
  }
  for (const auto& [key, value] : launcher_)
    if (Status status = check_value(*config::find_key(key), value); !status.ok())
      return invalid(key, launch.launcher + ": " + status.message());
  return LauncherNote{
      launch.launcher + ": rank " + text("rank") + " of " + text("num_workers") + ", head " + text("head"),
      false};
}

std::vector<std::string> Config::warnings(bool for_head) const {
  std::vector<std::string> sentences;
  // A head does not know the workers' step_timeout.
  if (!for_head && duration("straggler_timeout") >= duration("step_timeout")) {
    sentences.push_back("straggler_timeout = " + text("straggler_timeout") +
                        " is not less than step_timeout = " + text("step_timeout") +
                        ": a step without a limit of its own fails before the head evicts a straggler; set "
                        "straggler_timeout lower, or step_timeout higher");
  }
  for (const std::string& name : unknown_variables_) {
    sentences.push_back(
        "unknown environment variable " + name + " is ignored" +
        did_you_mean(name, config::environment_names(), "; `dsgd config` lists those that are read"));
  }
  return sentences;
}

// For an error of a session or a head that does not start: it has no log, where warnings() would be.
Status Config::with_misspelt_variables(const Status& status) const {
  std::string text = status.message();
  std::set<std::string> named;  // one variable for each key: Kubernetes sets several DSGD_HEAD_*
  for (const std::string& name : unknown_variables_) {
    const std::string nearest = nearest_name(name, config::environment_names());
    const auto key = std::find_if(config_keys().begin(), config_keys().end(),
                                  [&](const ConfigKey& one) { return nearest == one.environment; });
    if (key == config_keys().end() || given(key->name) || !named.insert(nearest).second) continue;
    text += "; the environment has the unknown variable " + name + ": did you mean " + nearest + "?";
  }
  return Status(status.code(), text).with_parameter(status.parameter());
}

Status Config::validate(bool for_head) const {
  Status status = check_environment(for_head);
  if (status.ok()) status = check_together();
  return status.ok() ? status : with_misspelt_variables(status);
}

Status Config::validate_client() const {
  Status status = check_environment(true);
  if (status.ok()) status = check_tls();
  return status.ok() ? status : with_misspelt_variables(status);
}

Status Config::check_environment(bool for_head) const {
  for (const auto& [key, value] : environment_) {
    if (for_head && (key == "algorithm" || key == "strategy")) continue;
    const ConfigKey& known = *config::find_key(key);
    const Status status = check_value(known, value);
    if (!status.ok() && !set_.contains(key))
      return invalid(key, "environment variable " + std::string(known.environment) + ": " + status.message());
  }
  if (!for_head && !text("head").empty() && !given("num_workers") && !launcher_.contains("num_workers"))
    return invalid(
        "num_workers",
        "key 'head' is set, but 'num_workers' is not: set num_workers (or DSGD_NUM_WORKERS) to the "
        "number of workers of the whole job, 1 for one that trains alone");
  if (!for_head && integer("checkpoint_interval") > 0 && text("checkpoint_dir").empty())
    return invalid("checkpoint_dir", "key 'checkpoint_interval' is " + text("checkpoint_interval") +
                                         ", but checkpoint_dir is not set: set it to the folder of the job's "
                                         "checkpoints, on a file system that all workers share");
  return {};
}

Status Config::check_together() const {
  const int64_t workers = integer("num_workers");
  const std::string of_workers = "num_workers is " + std::to_string(workers);
  if (workers > 1 && text("head").empty())
    return invalid("head", "key 'head' is not set, but " + of_workers +
                               ": set head (or DSGD_HEAD) to the address of the head, HOST:PORT");
  if (const int64_t most = integer("max_workers"); integer("rank") >= std::max(workers, most))
    return invalid("rank", "key 'rank': " + text("rank") + " is too large, since " +
                               (most > workers ? "max_workers is " + std::to_string(most) : of_workers) +
                               " and ranks begin at 0; set rank lower, or " +
                               (most > workers ? "max_workers" : "num_workers") + " higher");
  if (integer("servers") > workers)
    return invalid("servers",
                   "key 'servers': " + text("servers") + " is too many, since " + of_workers +
                       " and servers live in workers; set servers lower, or 0 for one in each worker");
  if (const int64_t least = integer("min_workers"); least > workers) {
    return invalid("min_workers", "key 'min_workers': " + std::to_string(least) + " is too many, since " +
                                      of_workers + "; leave min_workers unset");
  } else if (const int64_t most = integer("max_workers"); most < workers) {
    return invalid("max_workers", "key 'max_workers': " + std::to_string(most) + " is too few, since " +
                                      of_workers + "; leave max_workers unset");
  } else if (views_change() && flag("early_update")) {
    return invalid("early_update",
                   "early_update = 1 changes values before a step is sure to end, so no worker could go on "
                   "in another view; set early_update = 0, or leave min_workers, max_workers and "
                   "rejoin_timeout unset");
  }
  if (duration("heartbeat_interval") > duration("lease") / 2)
    return invalid("heartbeat_interval",
                   "key 'heartbeat_interval': '" + text("heartbeat_interval") +
                       "' is more than half of lease ('" + text("lease") +
                       "'), so that one late renewal would lose the worker; set it lower, or 0");
  if (const auto straggler = duration("straggler_timeout"); straggler.count() > 0) {
    if (!views_change())
      return invalid(
          "straggler_timeout",
          "key 'straggler_timeout': '" + text("straggler_timeout") +
              "' evicts a worker, and this job cannot go on without it; set min_workers to less than "
              "num_workers (" +
              text("num_workers") + "), or straggler_timeout to 0");
    if (straggler < duration("lease"))
      return invalid("straggler_timeout", "key 'straggler_timeout': '" + text("straggler_timeout") +
                                              "' is less than lease ('" + text("lease") +
                                              "'), so that few reports would decide; set it higher, or 0");
  }
  if (const std::string& nonfinite = text("nonfinite");
      text("loss_scale") == "dynamic" && (nonfinite == "fail" || nonfinite == "zero"))
    return invalid("nonfinite", "key 'nonfinite': '" + nonfinite +
                                    "' cannot be combined with loss_scale = dynamic, which finds its factor "
                                    "by steps that overflow and are skipped; set nonfinite to skip or off");
  if (const std::string& wire = text("wire"); wire != "fp32") {
    if (flag("reproducible")) {
      return invalid("wire", "key 'wire': '" + wire +
                                 "' cannot be combined with reproducible = 1, whose sums travel as integers; "
                                 "set wire to fp32, or reproducible to 0");
    }
    if (wire == "fp16" && text("loss_scale") == "off") {
      return invalid("wire",
                     "key 'wire': 'fp16' needs loss_scale, which skips a step whose sums overflow and keeps "
                     "small gradients from becoming 0; set loss_scale to dynamic, or wire to bf16");
    }
  }
  if (Status status = check_tls(); !status.ok()) return status;
  if (const std::string& state = text("head_state"); state.starts_with("etcds:") && text("tls_cert").empty())
    return invalid("head_state", "key 'head_state': '" + state +
                                     "' reaches etcd by TLS, but the job has no certificate; set tls_cert, "
                                     "tls_key and tls_ca, or use etcd:// (plain HTTP)");
  const size_t devices = config::split_list(text("devices")).size();
  if (text("devices") != "auto" && static_cast<uint64_t>(integer("devices_per_worker")) > devices)
    return invalid("devices_per_worker", "key 'devices_per_worker': " + text("devices_per_worker") +
                                             " is more than the " + std::to_string(devices) +
                                             " of devices ('" + text("devices") + "'); list more devices");
  return {};
}

Status Config::check_tls() const {
  constexpr const char* kTls[] = {"tls_cert", "tls_key", "tls_ca"};
  for (const char* missing : kTls) {
    for (const char* other : kTls) {
      if (text(missing).empty() && !text(other).empty())
        return invalid(missing, std::string("key '") + missing + "' is not set, but '" + other +
                                    "' is: TLS needs all of tls_cert, tls_key and tls_ca; set " + missing +
                                    " to the path of a PEM file");
    }
  }
  return {};
}

const std::string* Config::get(std::string_view key) const {
  for (const auto* layer : {&set_, &environment_, &file_, &launcher_})
    if (const auto found = layer->find(key); found != layer->end()) return &found->second;
  // Threads may read while the process exits, so none of the statics here is destroyed.
  static const auto* const kDefaults = [] {
    auto* const values = new std::map<std::string, std::string, std::less<>>;
    for (const ConfigKey& row : config_keys()) (*values)[row.name] = row.default_value;
    return values;
  }();
  const auto found = kDefaults->find(key);
  return found == kDefaults->end() ? nullptr : &found->second;
}

// The log level is read before validate() can report a bad one; such a value then counts as the default.
const std::string& Config::text(std::string_view key) const {
  static const auto* const kEmpty = new std::string;
  const std::string* value = get(key);
  const ConfigKey* known = config::find_key(key);
  if (!value || !known) return *kEmpty;
  if (known->kind != Type::kChoice || check_value(*known, *value).ok()) return *value;
  static const auto* const kDefaults = new Config;
  return *kDefaults->get(key);
}

int64_t Config::integer(std::string_view key) const {
  const std::string& value = text(key);
  if ((key == "min_workers" || key == "max_workers") && value.empty()) return integer("num_workers");
  return parse_integer(value).value_or(0);
}

bool Config::flag(std::string_view key) const { return text(key) == "1"; }

uint64_t Config::size(std::string_view key) const {
  return static_cast<uint64_t>(config::parse_size(text(key)).value_or(0));
}

std::chrono::nanoseconds Config::duration(std::string_view key) const {
  const std::chrono::nanoseconds value(config::parse_duration(text(key)).value_or(0));
  if (key == "heartbeat_interval" && value.count() == 0) return duration("lease") / 5;
  return value;
}

PortRange Config::ports() const { return config::parse_ports(text("ports")).value_or(PortRange{}); }

Result<std::vector<std::string>> Config::devices(uint32_t local_rank) const {
  std::vector<std::string> all = config::split_list(text("devices"));
  const auto each = static_cast<size_t>(integer("devices_per_worker"));
  if (each == 0) return all;
  const size_t begin = local_rank * each;
  if (begin + each > all.size())
    return invalid("devices", "key 'devices': '" + text("devices") + "' has " + std::to_string(all.size()) +
                                  " entries, but the worker with local rank " + std::to_string(local_rank) +
                                  " takes number " + std::to_string(begin) + " to " +
                                  std::to_string(begin + each - 1) + " (devices_per_worker is " +
                                  std::to_string(each) + "); list more devices");
  return std::vector<std::string>(all.begin() + begin, all.begin() + begin + each);
}

}  // namespace dsgd

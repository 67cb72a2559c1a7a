// `dsgd status` asks the head for the state of a job and its workers; `dsgd scale` sets their number.

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "capi/tools/tool.h"

namespace dsgd_tool {
namespace {

using nlohmann::json;

struct HeadOptions : JobOptions {
  int timeout = 10;  // seconds
};

struct StatusOptions : HeadOptions {
  bool as_json = false, watch = false;
  double interval = 2;  // of --watch, in seconds
};

struct ScaleOptions : HeadOptions {
  int workers = 0;
};

// Text of other processes must not control the terminal.
std::string plain(std::string text) {
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  return text;
}

std::string decimals(double number, int places) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", places, number);
  return text;
}

std::string text_of(const json& value) { return value.is_string() ? plain(value.get<std::string>()) : ""; }
std::string number_or_dash(const json& value) { return value.is_null() ? "-" : value.dump(); }

std::string head_line(const json& job) {
  const json& workers = job["workers"];
  const std::string state = job["state"];
  const int total = job["num_workers"], least = job["min_workers"], most = job["max_workers"];
  std::string line = "job '" + text_of(job["job"]) + "', head " + text_of(job["head"]) + ": " + state;
  if (state == "gathering") {
    line += ", " + std::to_string(workers.size()) + " of " + std::to_string(total) + " workers have joined";
    std::string missing;
    for (const json& rank : job["missing"]) missing += (missing.empty() ? "" : ", ") + rank.dump();
    if (!missing.empty()) line += "; missing: rank " + missing;
    if (!job["refused"].is_null()) line += "; refused: " + text_of(job["refused"]);
    return line;
  }
  const auto running = std::count_if(workers.begin(), workers.end(),
                                     [](const json& worker) { return worker["state"] == "running"; });
  line += ", view " + job["view"].dump() + ", " + std::to_string(running);
  if (least < total || most > total) {
    line += std::string(running == 1 ? " worker" : " workers") + " (began with " + std::to_string(total) +
            "; may be " + std::to_string(least) + " to " + std::to_string(most) + ")";
  } else {
    line += " of " + std::to_string(total) + " workers";
  }
  if (!job["wanted_workers"].is_null()) line += ", " + job["wanted_workers"].dump() + " wanted";
  if (!job["head_rank"].is_null()) line += ", rank " + job["head_rank"].dump() + " hosts the head";
  if (!job["error"].is_null()) line += "\nerror: " + text_of(job["error"]);
  return line;
}

// "waits 12.3 s in step 17: rank 2 (...) has not made this call"
std::string activity(const json& worker) {
  const std::string state = worker["state"];
  if (state != "running")
    return state == "waiting"   ? "waits for the others to come"
           : state == "joining" ? "joins the running job"
                                : state;
  if (worker["activity"].is_null()) return "has not reported yet";
  std::string text = worker["activity"];
  if (worker["seconds"].is_null()) return text;
  text += " " + decimals(worker["seconds"], 1) + " s";
  if (!worker["operation"].is_null()) text += " in " + text_of(worker["operation"]);
  // In a job that trains, each worker waits briefly in each step.
  if (!worker["waiting"].is_null() && worker["seconds"] >= 1.0) text += ": " + text_of(worker["waiting"]);
  return text;
}

void print_table(const json& job) {
  std::vector<std::vector<std::string>> rows = {
      {"rank", "worker", "host", "pid", "step", "steps/s", "heartbeat", ""}};
  for (const json& worker : job["workers"]) {
    rows.push_back({number_or_dash(worker["rank"]), text_of(worker["worker_id"]), text_of(worker["host"]),
                    worker["pid"].dump(), number_or_dash(worker["steps"]),
                    worker["steps_per_second"].is_null() ? "-" : decimals(worker["steps_per_second"], 2),
                    worker["silence"].is_null() ? "-" : decimals(worker["silence"], 1) + " s ago",
                    activity(worker)});
  }
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::printf("%s\n", head_line(job).c_str());
  if (rows.size() == 1) return;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      const std::string fill(widths[i] - row[i].size(), ' ');
      const bool name = i == 1 || i == 2;
      line += (name ? row[i] + fill : fill + row[i]) + "  ";
    }
    line += row.back();
    std::printf("%s\n", line.substr(0, line.find_last_not_of(' ') + 1).c_str());
  }
}

std::string job_status(const OwnedConfig& config, int timeout_seconds) {
  char* text = nullptr;
  dsgd_error* error = nullptr;
  check(dsgd_job_status(config.get(), timeout_seconds * 1000, &text, &error), error);
  const std::unique_ptr<char, void (*)(char*)> owner(text, dsgd_text_free);
  return text;
}

int watch(const OwnedConfig& config, const StatusOptions& options) {
  for (bool first = true;; first = false) {
    json job;
    try {
      job = json::parse(job_status(config, options.timeout));
    } catch (const Failure& failure) {
      if (first) throw;
      const bool silent = failure.status == DSGD_ERR_TIMEOUT;
      std::fprintf(stderr, "dsgd status: %s%s\n",
                   silent ? "" : "the head is no longer reachable: ", failure.what());
      return silent ? 1 : 0;
    }
    if (options.as_json) {
      std::printf("%s\n", job.dump().c_str());  // one line for each answer
    } else {
      if (!first) std::printf("\n");
      print_table(job);
    }
    flush_output();
    if (job["state"] == "failed") return 1;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval));
  }
}

void configure_for(const HeadOptions& options, const OwnedConfig& config) {
  configure(config, options);
  if (!*dsgd_config_value(config.get(), "head"))
    throw Failure("no head to ask; give --head HOST:PORT, or set DSGD_HEAD");
}

int run_status(const StatusOptions& options) {
  OwnedConfig config(dsgd_config_new());
  configure_for(options, config);
  if (options.watch) return watch(config, options);
  const std::string text = job_status(config, options.timeout);
  if (options.as_json) {
    std::printf("%s\n", text.c_str());
  } else {
    print_table(json::parse(text));
  }
  return 0;
}

int run_scale(const ScaleOptions& options) {
  OwnedConfig config(dsgd_config_new());
  configure_for(options, config);
  dsgd_error* error = nullptr;
  check(dsgd_job_scale(config.get(), options.workers, options.timeout * 1000, &error), error);
  std::printf(
      "the head now asks for %d worker%s; if a `dsgd run` without --head and --hosts has started this "
      "head, it starts or stops workers; otherwise start or stop them yourself\n",
      options.workers, options.workers == 1 ? "" : "s");
  return 0;
}

void add_head_options(CLI::App& app, HeadOptions* options) {
  app.add_option("--head", options->head,
                 "Address of the job's head, HOST:PORT or unix:PATH; several: A,B (default: DSGD_HEAD)");
  add_job_options(app, options);
  app.add_option("--timeout", options->timeout, "Seconds to wait for the head (default: 10)")
      ->check(whole_number(1, 86400));
}

std::optional<std::pair<uint64_t, uint64_t>> steps_in_view(const json& job) {
  std::pair<uint64_t, uint64_t> steps{UINT64_MAX, 0};
  for (const json& worker : job["workers"]) {
    if (worker["state"] != "running") continue;
    if (worker["view"].is_null() || worker["view"] != job["view"]) return std::nullopt;
    const uint64_t own = worker["steps"];
    steps = {std::min(steps.first, own), std::max(steps.second, own)};
  }
  return steps;
}

}  // namespace

uint32_t count_others(const std::map<std::string, pid_t>& workers, const std::set<std::string>& own) {
  return static_cast<uint32_t>(std::count_if(
      workers.begin(), workers.end(), [&](const auto& worker) { return !own.contains(worker.first); }));
}

std::optional<JobState> job_state(const OwnedConfig& config) {
  try {
    const json job = json::parse(job_status(config, 1));
    JobState state;
    if (!job["wanted_workers"].is_null()) {
      state.wanted_workers = job["wanted_workers"];
      state.scale_requests = job["scale_requests"];
    }
    for (const json& worker : job["workers"]) {
      auto& workers = worker["state"] == "left"   ? state.left
                      : worker["state"] == "lost" ? state.lost
                                                  : state.present;
      workers[worker["worker_id"]] = worker["pid"];
    }
    state.failed = job["state"] == "failed";
    if (!job["view"].is_null()) state.view = job["view"];
    state.steps = steps_in_view(job);
    return state;
  } catch (const Failure&) {
    return std::nullopt;
  }
}

Command add_scale(CLI::App& app) {
  auto options = std::make_shared<ScaleOptions>();
  app.add_option("WORKERS", options->workers, "Number of workers wanted")
      ->required()
      ->check(whole_number(1, kMaxWorkers));
  add_head_options(app, options.get());
  app.footer(
      "The head keeps the number and starts nothing itself. A `dsgd run` that has started this head on its\n"
      "node, without --head and --hosts, starts or stops workers within a second or two. Elsewhere, a\n"
      "program of yours has to read wanted_workers of `dsgd status --json`. After a loss, run the command\n"
      "again with the same number to replace the lost workers. The job must allow the number:\n"
      "min_workers <= WORKERS <= max_workers.\n"
      "Exit status: 0: the head has the number; 1: the request failed; standard error has the reason.");
  return [options] { return run_scale(*options); };
}

Command add_status(CLI::App& app) {
  auto options = std::make_shared<StatusOptions>();
  add_head_options(app, options.get());
  app.add_flag("--json", options->as_json,
               "Print the answer as JSON; dsgd.h describes it at dsgd_job_status");
  app.add_flag(
      "--watch", options->watch,
      "Repeat until the head is no longer reachable, or the job has failed; with --json, print one line "
      "each time");
  app.add_option("--interval", options->interval, "With --watch: seconds between two queries (default: 2)")
      ->check(CLI::Range(0.1, 86400.0));
  app.footer(
      "Workers report once per heartbeat_interval.\n"
      "Exit status: 0: the head has answered; 1: the request failed (no head there, another token, job or\n"
      "version); standard error has the reason. --watch ends with 0 when the head is no longer reachable,\n"
      "as after the end of the job, and with 1 if the job has failed or no answer comes within --timeout.");
  return [options] { return run_status(*options); };
}

}  // namespace dsgd_tool

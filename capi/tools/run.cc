// `dsgd run`: starts the workers of one job on this node and sees them to their end.
#include <sys/random.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "capi/tools/supervisor.h"
#include "capi/tools/tool.h"

namespace dsgd_tool {
namespace {

constexpr double kLongestGrace = 24 * 3600;

struct Options {
  uint32_t workers = 1, num_workers = 0, first_rank = 0;
  std::string head, job, init, separator = ":";
  std::vector<std::string> settings;
  double grace_seconds = 10;
  bool no_prefix = false;
};

// Some workers with the same command line.
struct Part {
  uint32_t workers;
  std::vector<std::string> command;
};

uint32_t parse_count(const std::string& text) {
  char* end = nullptr;
  const unsigned long count = std::strtoul(text.c_str(), &end, 10);
  if (text.empty() || *end || text[0] == '-' || count < 1 || count > 65536)
    throw CLI::ValidationError("-n", "'" + text + "' is no number of workers (1 to 65536)");
  return static_cast<uint32_t>(count);
}

// After the first: [-n N] [--] COMMAND ARGUMENT...
Part parse_part(std::vector<std::string> words) {
  Part part{1, {}};
  size_t next = 0;
  if (next < words.size() && (words[next] == "-n" || words[next] == "--workers")) {
    if (words.size() < 2) throw CLI::ValidationError("-n", "a number of workers must follow");
    part.workers = parse_count(words[1]);
    next = 2;
  }
  if (next < words.size() && words[next] == "--") ++next;
  part.command.assign(words.begin() + static_cast<std::ptrdiff_t>(next), words.end());
  return part;
}

std::vector<Part> parse_parts(const Options& options, const std::vector<std::string>& words) {
  std::vector<std::vector<std::string>> pieces(1);
  for (const auto& word : words) {
    if (word == options.separator) {
      pieces.emplace_back();
    } else {
      pieces.back().push_back(word);
    }
  }
  std::vector<Part> parts{{options.workers, pieces[0]}};
  for (size_t i = 1; i < pieces.size(); ++i) parts.push_back(parse_part(pieces[i]));
  for (const auto& part : parts)
    if (part.command.empty())
      throw CLI::ValidationError("COMMAND", "a command is missing: dsgd run -n 4 -- COMMAND [ARGUMENT...]");
  return parts;
}

std::string random_token() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) throw Failure("the system gives no random bytes");
  std::string text;
  for (const unsigned char byte : bytes) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", byte);
    text += pair;
  }
  return text;
}

// What all workers have in common.
std::vector<Setting> common_settings(const Options& options, uint32_t local_workers) {
  std::vector<Setting> settings;
  for (const auto& text : options.settings) settings.push_back(parse_setting(text));
  const uint32_t all = options.num_workers ? options.num_workers : options.first_rank + local_workers;
  settings.push_back({"num_workers", std::to_string(all)});
  settings.push_back({"embed_head", "never"});
  if (!options.job.empty()) settings.push_back({"job", options.job});
  return settings;
}

// Starts a head in this process and tells the workers how to reach it.
void start_head(std::vector<Setting>* settings, OwnedHead* head) {
  OwnedConfig config(dsgd_config_new());
  dsgd_error* error = nullptr;
  if (!std::getenv("DSGD_TOKEN")) settings->push_back({"token", random_token()});
  for (const auto& setting : *settings) {
    // Names that the workers may have registered; a wrong one is their error.
    if (setting.key == "algorithm" || setting.key == "strategy") continue;
    check(dsgd_config_set(config.get(), setting.key.c_str(), setting.value.c_str(), &error), error);
  }
  check(dsgd_config_set(config.get(), "head", "127.0.0.1:0", &error), error);
  check(dsgd_head_start(config.get(), head->out(), &error), error);
  settings->push_back({"head", dsgd_head_address(head->get())});
}

int run_workers(const Options& options, const std::vector<std::string>& words) {
  const auto parts = parse_parts(options, words);
  uint32_t local_workers = 0;
  for (const auto& part : parts) local_workers += part.workers;
  if (options.num_workers && options.num_workers < options.first_rank + local_workers)
    throw CLI::ValidationError("--num-workers", std::to_string(options.num_workers) +
                                                    " is less than the first rank and the workers here need");

  Supervisor supervisor(
      {.grace = std::chrono::duration_cast<std::chrono::milliseconds>(
           std::chrono::duration<double>(options.grace_seconds)),
       .prefix = !options.no_prefix});  // before the head: it blocks signals, and threads inherit that
  auto settings = common_settings(options, local_workers);
  if (!options.init.empty()) {
    supervisor.start({"init", {"/bin/sh", "-c", options.init}, settings});
    if (const int status = supervisor.wait()) return status;
  }

  OwnedHead head;
  if (!options.head.empty()) {
    settings.push_back({"head", options.head});
  } else if (!std::getenv("DSGD_HEAD")) {
    start_head(&settings, &head);
  }
  uint32_t rank = options.first_rank;
  for (const auto& part : parts) {
    for (uint32_t i = 0; i < part.workers; ++i, ++rank) {
      auto own = settings;
      own.push_back({"rank", std::to_string(rank)});
      own.push_back({"worker_id", "worker-" + std::to_string(rank)});
      supervisor.start({std::to_string(rank), part.command, own});
    }
  }
  return supervisor.wait();
}

}  // namespace

Command add_run(CLI::App& app, std::vector<std::string> words) {
  auto options = std::make_shared<Options>();
  app.add_option("-n,--workers", options->workers, "Workers of the first command (default 1)")
      ->check(CLI::Range(1, 65536));
  app.add_option("--init", options->init,
                 "Shell command to run once on this node before the workers; if it fails, nothing else runs");
  app.add_option("--head", options->head,
                 "Address of a head that runs elsewhere (default: DSGD_HEAD; else a head is started here)");
  app.add_option("--num-workers", options->num_workers,
                 "Workers of the whole job, with --head (default: those here)")
      ->check(CLI::PositiveNumber);
  app.add_option("--first-rank", options->first_rank,
                 "Rank of the first worker here, with --head (default 0)");
  app.add_option("--job", options->job, "Name of the job (default: DSGD_JOB)");
  app.add_option("--set", options->settings,
                 "Another configuration key for head and workers, KEY=VALUE; may be repeated")
      ->take_all();
  app.add_option("--grace", options->grace_seconds, "Seconds between SIGTERM and SIGKILL (default 10, at most a day)")
      ->check(CLI::Range(0.0, kLongestGrace));
  app.add_flag("--no-prefix", options->no_prefix, "Do not put [rank] before the workers' output lines");
  app.add_option("--separator", options->separator, "Word between commands (default ':')");
  app.footer(
      "dsgd run [OPTIONS] -- COMMAND [ARGUMENT...] [: [-n N] COMMAND [ARGUMENT...]]...\n\n"
      "Several commands make one job; ranks are given in order:\n"
      "    dsgd run -n 1 -- ./trainer : -n 2 python3 train.py : -n 1 java -jar trainer.jar\n"
      "Workers get DSGD_HEAD, DSGD_NUM_WORKERS, DSGD_RANK, DSGD_WORKER_ID, DSGD_EMBED_HEAD=never and, unless "
      "it is set,\n"
      "a random DSGD_TOKEN. When one fails, the others get SIGTERM, then SIGKILL; the exit status is that of "
      "the first\n"
      "to fail (128 + signal for one that was killed). SIGINT and SIGTERM are passed on.\n"
      "On several nodes: dsgd head on one, then on each: dsgd run -n 2 --head HOST:PORT --num-workers 4 "
      "--first-rank 2 ...");
  return [options, words = std::move(words)] { return run_workers(*options, words); };
}

}  // namespace dsgd_tool

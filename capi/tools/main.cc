// dsgd: the command line of the library. Exit status: the command's own, 1 for a failure, 2 for wrong usage.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include <CLI/CLI.hpp>

#include "capi/tools/run.h"
#include "capi/tools/run_words.h"
#include "capi/tools/tool.h"
#include "core/config/nearest.h"

namespace dsgd_tool {
namespace {

// The error of a command line that names no subcommand.
std::string without_subcommand(const CLI::App& app) {
  const auto words = app.remaining();
  std::string text = words.empty() ? "a subcommand is missing" : "unknown subcommand '" + words[0] + "'";
  const char* before = "; use ";
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    text += before + sub->get_name();
    before = ", ";
  }
  return text;
}

// The error of words that the subcommand does not know.
std::string unknown_words(const CLI::App& sub) {
  const std::string word = sub.remaining().front();
  if (sub.get_name() == "run") {
    if (const std::string fault = unknown_word_fault(word); !fault.empty()) return fault;
  }
  if (!word.starts_with('-'))
    return "unexpected argument '" + word + "'; see `dsgd " + sub.get_name() + " --help`";
  const std::string name = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* one :
       sub.get_options([](const CLI::Option* o) { return !o->get_group().empty(); })) {
    for (const std::string& long_name : one->get_lnames()) known.push_back("--" + long_name);
  }
  if (sub.get_name() == "run") {
    if (const std::string remedy = remedy_for_key(name); !remedy.empty())
      return "unknown option '" + name + "'; " + remedy;
  }
  const std::string nearest = dsgd::nearest_name(name, known);
  return "unknown option '" + name + "'" + (nearest.empty() ? "" : ", did you mean '" + nearest + "'?") +
         "; see `dsgd " + sub.get_name() + " --help`";
}

const std::string kSeeHelp = "; see `dsgd --help` and `dsgd SUBCOMMAND --help`";

int refuse(const std::string& fault) {
  std::fprintf(stderr, "dsgd: %s\n", fault.c_str());
  return kExitUsage;
}

int run_tool(int argc, char** argv) {
  // All words of `dsgd run` after the first "--" belong to the command to run, its options too.
  std::vector<std::string> own(argv + 1, argv + argc);
  const bool runs = !own.empty() && own.front() == "run";
  const auto dashes = runs ? std::find(own.begin(), own.end(), "--") : own.end();
  std::vector<std::string> words;
  if (dashes != own.end()) words.assign(dashes + 1, own.end());
  own.erase(dashes, own.end());
  if (runs) {
    if (const std::string fault = separator_fault(own); !fault.empty()) return refuse(fault);
  }

  // CLI11 would read MPICH's -hosts as -h.
  for (const std::string& word : own)
    if (word.starts_with("-ho")) return refuse(unknown_word_fault(word));

  CLI::App app(
      "Data-parallel training: run local workers, run the head of a job, show its state, scale it, list the "
      "configuration.",
      "dsgd");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("dsgd ") + dsgd_version_string());
  CLI::App& run = *app.add_subcommand("run", "Run local workers of one job");
  CLI::App& head = *app.add_subcommand("head", "Run the head of a job");
  CLI::App& status = *app.add_subcommand("status", "Show the state of a job and of its workers");
  CLI::App& scale = *app.add_subcommand("scale", "Set the number of workers of a running job");
  CLI::App& config = *app.add_subcommand("config", "List all configuration keys");
  CLI::App& version = *app.add_subcommand("version", "Print the version");
  const Command print_version = [] { return std::printf("dsgd %s\n", dsgd_version_string()) < 0; };
  const std::pair<const CLI::App*, Command> commands[] = {
      {&run, add_run(run, std::move(words))}, {&head, add_head(head)},
      {&status, add_status(status)},          {&scale, add_scale(scale)},
      {&config, add_config(config)},          {&version, print_version}};
  try {
    std::reverse(own.begin(), own.end());  // as CLI11 wants it
    app.parse(own);
    for (const auto& [sub, command] : commands)
      if (sub->parsed()) return command();
  } catch (const CLI::ParseError& wrong) {
    if (wrong.get_exit_code() == 0) return app.exit(wrong);  // help
    if (const auto subs = app.get_subcommands();
        !subs.empty() && !subs[0]->remaining().empty() && dynamic_cast<const CLI::ExtrasError*>(&wrong))
      return refuse(unknown_words(*subs[0]));
    const bool subcommand = dynamic_cast<const CLI::RequiredError*>(&wrong) && app.get_subcommands().empty();
    return refuse((subcommand ? without_subcommand(app) : wrong.what()) + kSeeHelp);
  } catch (const UsageError& wrong) {
    return refuse(wrong.what() + kSeeHelp);
  }
  return kExitUsage;
}

}  // namespace
}  // namespace dsgd_tool

int main(int argc, char** argv) {
  // If a standard stream is closed, a pipe to a worker could get its number. Opens /dev/null in its place.
  for (int fd = open("/dev/null", O_RDWR); fd >= 0; fd = open("/dev/null", O_RDWR)) {
    if (fd <= STDERR_FILENO) continue;
    close(fd);
    break;
  }
  try {
    const int status = dsgd_tool::run_tool(argc, argv);
    dsgd_tool::flush_output();
    return status;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "dsgd: %s\n", failure.what());
    return 1;
  }
}

#include "capi/tools/run_words.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "capi/tools/tool.h"

namespace dsgd_tool {
namespace {

// The beginning of options of mpirun, srun and torchrun, and the option of `dsgd run` that does the same.
struct OtherLaunchersOption {
  const char *beginning, *own;
};
constexpr const char* kCount = "the number of workers is -n, as in `dsgd run -n 2 -- COMMAND`";
constexpr const char* kHosts = "use --hosts, as in `dsgd run --hosts node1,node2 -- COMMAND`";
constexpr OtherLaunchersOption kOthers[] = {
    {"-np", kCount},
    {"--np", kCount},  // and --nproc-per-node
    {"--ntasks", kCount},
    {"--nnodes", kHosts},
    {"-H", kHosts},
    {"-ho", kHosts},  // -hosts, -hostfile
    {"--node-rank", "the rank of the first worker here is --first-rank"},
    {"--master-", "the head's address is --head HOST:PORT"},
    {"--rdzv-", "the head's address is --head HOST:PORT"},
    {"-x", "use --env to pass a variable to the hosts"},
};

const OtherLaunchersOption* find_others(const std::string& word) {
  std::string name = word;  // torchrun takes both spellings
  std::replace(name.begin(), name.end(), '_', '-');
  const auto* const found =
      std::find_if(std::begin(kOthers), std::end(kOthers),
                   [&](const OtherLaunchersOption& other) { return name.starts_with(other.beginning); });
  return found == std::end(kOthers) ? nullptr : found;
}

uint32_t parse_count(const std::string& text) {
  if (const std::string fault = count_fault(text); !fault.empty()) throw UsageError("-n", fault);
  return static_cast<uint32_t>(std::stoul(text));
}

// Throws for a command that is missing or begins like an option.
void check_command(const std::vector<std::string>& command) {
  if (command.empty())
    throw UsageError("COMMAND", "a command is missing: dsgd run -n 4 -- COMMAND [ARGUMENT...]");
  if (find_others(command[0])) throw UsageError("COMMAND", unknown_word_fault(command[0]));
  if (command[0].starts_with('-'))
    throw UsageError("COMMAND", "expected a command, found the option '" + command[0] +
                                    "'; write options before the first --, except -n, which may also stand "
                                    "before each further command");
}

// A group after the first: [-n N] [--] COMMAND ARGUMENT...
CommandGroup parse_command_group(const std::vector<std::string>& words) {
  CommandGroup group{1, {}};
  auto next = words.begin();
  const auto take_count = [&](const std::string& option) {
    if (next == words.end() || !next->starts_with(option)) return;
    std::string count = (next++)->substr(option.size());
    if (count.empty()) {
      if (next == words.end()) throw UsageError("-n", "a number of workers must follow");
      count = *next++;
    } else if (count[0] == '=') {
      count.erase(0, 1);
    }
    group.workers = parse_count(count);
  };
  if (next != words.end() && !find_others(*next)) {
    take_count("-n");
    if (next == words.begin()) take_count("--workers");
  }
  if (next != words.end() && *next == "--") ++next;
  group.command.assign(next, words.end());
  return group;
}

}  // namespace

std::vector<CommandGroup> parse_command_groups(const std::vector<std::string>& words,
                                               const std::string& separator, uint32_t workers) {
  std::vector<std::vector<std::string>> pieces(1);
  for (const auto& word : words) {
    if (word == separator) {
      pieces.emplace_back();
    } else {
      pieces.back().push_back(word);
    }
  }
  std::vector<CommandGroup> groups{{workers, pieces[0]}};
  for (size_t i = 1; i < pieces.size(); ++i) groups.push_back(parse_command_group(pieces[i]));
  for (const CommandGroup& group : groups) check_command(group.command);
  return groups;
}

// CLI11 reads mpirun's -np as -n with the value p.
std::string count_fault(const std::string& text) {
  std::string fault = whole_number(1, kMaxWorkers)(text);
  if (!fault.empty() && text.starts_with('p')) fault += "; the option is -n, not -np";
  return fault;
}

// CLI11 takes what follows the ":" for options of the first command. After an option it is that option's
// value.
std::string separator_fault(const std::vector<std::string>& words) {
  for (size_t i = 1; i < words.size(); ++i)
    if (words[i] == ":" && !words[i - 1].starts_with('-')) return unknown_word_fault(":");
  return "";
}

std::string unknown_word_fault(const std::string& word) {
  if (!word.starts_with('-'))
    return "'" + word +
           "' is unexpected; write -- before the workers' command: dsgd run [OPTIONS] -- COMMAND";
  const OtherLaunchersOption* const other = find_others(word);
  return other ? "unknown option '" + word.substr(0, word.find('=')) + "'; " + other->own : "";
}

}  // namespace dsgd_tool

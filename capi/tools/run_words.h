// The words of the command line of `dsgd run`: the commands after "--", and errors in the words before it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsgd_tool {

// Some workers with the same command line.
struct CommandGroup {
  uint32_t workers;
  std::vector<std::string> command;
};

// Reads the words after "--", of which `separator` divides the commands. `workers` are those of the first
// one. Throws a UsageError.
std::vector<CommandGroup> parse_command_groups(const std::vector<std::string>& words,
                                               const std::string& separator, uint32_t workers);

// Returns the error in the value of -n, or "".
std::string count_fault(const std::string& text);

// Returns an error if a ':' separates commands before the first "--"; else "".
std::string separator_fault(const std::vector<std::string>& words);

// Returns the error of a word before "--": an option of another launcher, or a word that is no option.
// Returns "" for an unknown option that resembles none of theirs.
std::string unknown_word_fault(const std::string& word);

}  // namespace dsgd_tool

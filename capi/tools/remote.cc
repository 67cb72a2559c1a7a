#include "capi/tools/remote.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "capi/tools/tool.h"

namespace dsgd_tool {
namespace {

// Returns `word` quoted for a POSIX shell, fish and csh. Between quotes, fish reads '\' as an escape, and csh
// reads '!' as a reference to an earlier command. A newline has no notation that csh and the others share.
std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) {
    const bool special = c == '\'' || c == '\\' || c == '!';
    text += special ? std::string("'\\") + c + "'" : std::string(1, c);
  }
  return text + "'";
}

}  // namespace

// Entries NAME=VALUE that end with a zero byte; an empty one ends the block.
std::string environment_block(const std::map<std::string, std::string>& variables) {
  std::string block;
  for (const auto& [name, value] : variables) block += name + "=" + value + '\0';
  return block + '\0';
}

void take_environment() {
  std::string entry;
  for (char byte;;) {
    const ssize_t n = read(STDIN_FILENO, &byte, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Failure("--supervised: standard input ended within the environment variables");
    if (byte != '\0') {
      entry += byte;
      continue;
    }
    if (entry.empty()) return;
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) throw Failure("--supervised: '" + entry + "' is not NAME=VALUE");
    setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
    entry.clear();
  }
}

std::vector<std::string> ssh_words(const std::string& ssh, const std::string& host,
                                   const std::vector<std::string>& words) {
  std::vector<std::string> all;
  std::stringstream given(ssh);
  for (std::string word; given >> word;) all.push_back(word);
  // No password is asked for, since several ssh would ask at once. A dead connection is found within 30 s.
  for (const char* word :
       {"-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3", "--"})
    all.push_back(word);
  all.push_back(host);
  std::string command = "cd " + quoted(std::filesystem::current_path()) + " && exec";
  for (const auto& word : words) command += " " + quoted(word);
  all.push_back(command);
  return all;
}

}  // namespace dsgd_tool

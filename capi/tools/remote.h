// A `dsgd` on another host that this one supervises through its standard input. Standard input carries the
// environment variables, so they appear in no process list. After them, kInterrupt asks a `dsgd run` to
// interrupt its workers. If the input ends without it, the connection is lost. A `dsgd head` ends with its
// input.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace dsgd_tool {

// A supervised `dsgd run` writes this line first. It tells the supervisor that ssh has reached the host.
inline constexpr const char* kGreeting = "dsgd run: started";
// The beginning of the line with which a supervised `dsgd head` says where it listens. The shell of the host
// may write text of its own before either line.
inline constexpr std::string_view kHeadAddress = "dsgd head: address ";
// The beginning of a line with a worker's report that it waits for the job to begin, or has joined it.
inline constexpr std::string_view kReport = "dsgd run: report ";
// Written before the input is closed on purpose.
inline constexpr char kInterrupt = 'i';
// The text that take_environment() reads.
std::string environment_block(const std::map<std::string, std::string>& variables);
// Sets the variables that standard input gives. Throws a Failure if it ends too early.
void take_environment();

// The words that run `words` on `host` in this process's working folder. `ssh` may have options.
std::vector<std::string> ssh_words(const std::string& ssh, const std::string& host,
                                   const std::vector<std::string>& words);

}  // namespace dsgd_tool

#include "capi/tools/group_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "capi/tools/tool.h"

namespace dsgd_tool {
namespace {

// Reads commands from the pipe. A positive number: watch this group; a negative one: forget it. The end of
// the pipe: the launcher has ended; kill the groups.
[[noreturn]] void guard_groups(int pipe) {
  setpgid(0, 0);  // what ends the terminal's or the launcher's groups does not end the guard
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  const int null = open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
  std::set<pid_t> groups;
  for (;;) {
    pid_t number = 0;
    const ssize_t n = read(pipe, &number, sizeof number);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof number) break;
    if (number > 0) {
      groups.insert(number);
    } else {
      groups.erase(-number);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

void tell(int pipe, pid_t number) { [[maybe_unused]] const ssize_t n = write(pipe, &number, sizeof number); }

}  // namespace

GroupGuard::GroupGuard() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw system_failure("cannot create a pipe");
  pid_ = fork();
  if (pid_ < 0) throw system_failure("cannot fork");
  if (pid_ == 0) {
    close(ends[1]);
    guard_groups(ends[0]);
  }
  setpgid(pid_, pid_);  // here too: whichever comes first
  close(ends[0]);
  pipe_ = ends[1];
}

GroupGuard::~GroupGuard() {
  close(pipe_);
  waitpid(pid_, nullptr, 0);
}

void GroupGuard::watch(pid_t group) { tell(pipe_, group); }
void GroupGuard::forget(pid_t group) { tell(pipe_, -group); }

}  // namespace dsgd_tool

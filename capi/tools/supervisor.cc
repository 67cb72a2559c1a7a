#include "capi/tools/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>

#include "capi/tools/line_output.h"

namespace dsgd_tool {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw Failure(std::string("no pipe: ") + std::strerror(errno));
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    if (read >= 0) close(read);
    close(write);
  }
  int take_read() {  // non-blocking
    fcntl(read, F_SETFL, fcntl(read, F_GETFL) | O_NONBLOCK);
    return std::exchange(read, -1);
  }
};

std::vector<std::string> environment_with(const std::vector<Setting>& settings) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& setting : settings) variables[setting.variable()] = setting.value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> array;
  for (auto& text : texts) array.push_back(text.data());
  array.push_back(nullptr);
  return array;
}

int exit_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace

struct Supervisor::Running {
  std::string name;
  std::string command;
  pid_t pid;  // also its process group; 0 once it has been reaped
  std::unique_ptr<LineOutput> output, errors;
};

Supervisor::Supervisor(SupervisorOptions options) : options_(options) {
  signal(SIGPIPE, SIG_IGN);
  sigset_t awaited;
  sigemptyset(&awaited);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&awaited, number);
  struct sigaction hang_up;
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaddset(&awaited, SIGHUP);  // ignored under nohup
  pthread_sigmask(SIG_BLOCK, &awaited, &old_mask_);
  signal_fd_ = signalfd(-1, &awaited, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signal_fd_ < 0) throw Failure(std::string("no signalfd: ") + std::strerror(errno));
}

Supervisor::~Supervisor() {
  kill_all(SIGKILL);
  for (const auto& child : children_)
    if (child->pid) waitpid(child->pid, nullptr, 0);
  close(signal_fd_);
}

void Supervisor::start(const Child& child) {
  // Everything is made before the fork: between fork and exec only async-signal-safe calls are allowed, since
  // the head's threads do not exist in the child.
  auto command = child.command;
  auto argv = pointers(command);
  auto environment = environment_with(child.settings);
  auto envp = pointers(environment);
  Pipe output, errors, failure;
  const pid_t parent = getpid();

  const pid_t pid = fork();
  if (pid < 0) throw Failure(std::string("cannot fork: ") + std::strerror(errno));
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // it died before the line above
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    if (options_.prefix) {
      dup2(output.write, STDOUT_FILENO);
      dup2(errors.write, STDERR_FILENO);
    }
    // A shell starts background jobs with SIGINT ignored, which would make passing it on useless.
    for (const int number : {SIGPIPE, SIGINT, SIGTERM}) signal(number, SIG_DFL);
    sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
    execvpe(argv[0], argv.data(), envp.data());
    const int number = errno;
    [[maybe_unused]] const ssize_t n = write(failure.write, &number, sizeof number);
    _exit(127);
  }
  setpgid(pid, pid);  // here too: whichever comes first
  guard_.watch(pid);
  close(std::exchange(failure.write, open("/dev/null", O_WRONLY | O_CLOEXEC)));
  int number = 0;
  if (read(failure.read, &number, sizeof number) == sizeof number) {  // end of file: exec went well
    guard_.forget(pid);
    waitpid(pid, nullptr, 0);
    throw Failure("cannot run '" + child.command[0] + "': " + std::strerror(number));
  }
  auto running = std::make_unique<Running>();
  running->name = child.name;
  running->command = child.command[0];
  running->pid = pid;
  const std::string prefix = "[" + child.name + "] ";
  running->output = std::make_unique<LineOutput>(output.take_read(), STDOUT_FILENO, prefix);
  running->errors = std::make_unique<LineOutput>(errors.take_read(), STDERR_FILENO, prefix);
  children_.push_back(std::move(running));
}

bool Supervisor::anything_runs() const {
  return std::any_of(children_.begin(), children_.end(), [](const auto& child) { return child->pid != 0; });
}

int Supervisor::poll_timeout() const {
  if (kill_at_ == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(kill_at_ - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

int Supervisor::wait() {
  while (anything_runs()) {
    std::vector<pollfd> fds{{signal_fd_, POLLIN, 0}};
    for (const auto& child : children_)
      for (const auto* lines : {child->output.get(), child->errors.get()})
        fds.push_back({lines->fd(), POLLIN, 0});
    poll(fds.data(), fds.size(), poll_timeout());
    for (const auto& child : children_)
      for (auto* lines : {child->output.get(), child->errors.get()}) lines->copy();
    handle_signals();
    reap();
    if (Clock::now() >= kill_at_) {
      std::fprintf(stderr, "dsgd run: killing what did not end in time\n");
      kill_all(SIGKILL);
      kill_at_ = Clock::time_point::max();
    }
  }
  for (const auto& child : children_)
    for (auto* lines : {child->output.get(), child->errors.get()}) lines->finish();
  children_.clear();
  return status_;
}

void Supervisor::handle_signals() {
  signalfd_siginfo info;
  while (::read(signal_fd_, &info, sizeof info) == sizeof info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) continue;  // reap() looks for itself
    if (status_ == 0) status_ = 128 + number;
    end_all(ending_ ? SIGKILL : number);
  }
}

void Supervisor::reap() {
  for (const auto& child : children_) {
    siginfo_t info{};
    // The zombie is kept until its group has been killed, so that the group's number cannot belong to others.
    if (!child->pid ||
        waitid(P_PID, static_cast<id_t>(child->pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
      continue;
    kill(-child->pid, SIGKILL);
    guard_.forget(child->pid);
    int wait_status = 0;
    waitpid(child->pid, &wait_status, 0);
    child->pid = 0;
    child->output->copy();
    child->errors->copy();
    const int status = exit_status(wait_status);
    if (status == 0 || ending_) continue;
    if (status_ == 0) status_ = status;
    const bool killed = WIFSIGNALED(wait_status);
    std::fprintf(stderr, "dsgd run: [%s] %s %s %d%s\n", child->name.c_str(), child->command.c_str(),
                 killed ? "was killed by signal" : "failed with status",
                 killed ? WTERMSIG(wait_status) : status, anything_runs() ? "; ending the others" : "");
    end_all(SIGTERM);
  }
}

void Supervisor::end_all(int signal) {
  kill_all(signal);
  if (ending_) return;
  ending_ = true;
  kill_at_ = Clock::now() + options_.grace;
}

void Supervisor::kill_all(int signal) {
  for (const auto& child : children_)
    if (child->pid) kill(-child->pid, signal);
}

}  // namespace dsgd_tool

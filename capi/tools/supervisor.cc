#include "capi/tools/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

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
    close_read();
    close_write();
  }
  void close_read() {
    if (read >= 0) close(std::exchange(read, -1));
  }
  void close_write() {
    if (write >= 0) close(std::exchange(write, -1));
  }
  int take_read() {  // non-blocking
    fcntl(read, F_SETFL, fcntl(read, F_GETFL) | O_NONBLOCK);
    return std::exchange(read, -1);
  }
  int take_write() { return std::exchange(write, -1); }
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
  Running(const Child& child, pid_t pid) : kind(child.kind), name(child.name), command(child.command[0]), service(child.service), pid(pid) {}
  ~Running() {
    close_input();
    if (pidfd >= 0) close(pidfd);
  }
  void close_input() {
    if (input >= 0) close(std::exchange(input, -1));
  }

  const std::string kind, name, command;
  const bool service;
  pid_t pid;  // also its process group; 0 once it has been reaped
  int pidfd = -1, input = -1;
  std::unique_ptr<LineOutput> output, errors;
};

Supervisor::Supervisor(std::chrono::milliseconds grace) : grace_(grace) {
  signal(SIGPIPE, SIG_IGN);
  sigset_t awaited;
  sigemptyset(&awaited);
  for (const int number : {SIGINT, SIGTERM}) sigaddset(&awaited, number);
  struct sigaction hang_up;
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaddset(&awaited, SIGHUP);  // ignored under nohup
  pthread_sigmask(SIG_BLOCK, &awaited, &old_mask_);
  signal_fd_ = signalfd(-1, &awaited, SFD_CLOEXEC | SFD_NONBLOCK);
  exits_ = epoll_create1(EPOLL_CLOEXEC);
  if (signal_fd_ < 0 || exits_ < 0) throw Failure(std::string("no signalfd or epoll: ") + std::strerror(errno));
}

Supervisor::~Supervisor() {
  kill_all(SIGKILL);
  for (const auto& child : children_)
    if (child->pid) waitpid(child->pid, nullptr, 0);
  close(signal_fd_);
  close(exits_);
}

void Supervisor::start(const Child& child) {
  // Everything is made before the fork: between fork and exec only async-signal-safe calls are allowed, since
  // the head's threads do not exist in the child.
  auto command = child.command;
  auto argv = pointers(command);
  auto environment = environment_with(child.settings);
  auto envp = pointers(environment);
  Pipe input, output, errors, failure;
  const pid_t parent = getpid();

  const pid_t pid = fork();
  if (pid < 0) throw Failure(std::string("cannot fork: ") + std::strerror(errno));
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // it died before the line above
    dup2(child.input ? input.read : open("/dev/null", O_RDONLY), STDIN_FILENO);
    if (child.prefix) {
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
  auto running = std::make_unique<Running>(child, pid);
  failure.close_write();
  int number = 0;
  if (read(failure.read, &number, sizeof number) == sizeof number) {  // end of file: exec went well
    guard_.forget(pid);
    waitpid(pid, nullptr, 0);
    throw Failure("cannot run '" + child.command[0] + "': " + std::strerror(number));
  }
  running->output = std::make_unique<LineOutput>(output.take_read(), STDOUT_FILENO, child.prefix.value_or(""), child.on_line);
  running->errors = std::make_unique<LineOutput>(errors.take_read(), STDERR_FILENO, child.prefix.value_or(""));
  if (child.input) {
    input.close_read();  // so that a child that has gone is noticed
    running->input = input.take_write();
    write_all(running->input, *child.input);
  }
  children_.push_back(std::move(running));
  epoll_event event{.events = EPOLLIN, .data = {.ptr = children_.back().get()}};
  const auto pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));  // glibc's wrapper came late
  if (pidfd < 0 || epoll_ctl(exits_, EPOLL_CTL_ADD, pidfd, &event) != 0)
    throw Failure(std::string("cannot watch a child process: ") + std::strerror(errno));
  children_.back()->pidfd = pidfd;
}

bool Supervisor::anything_runs(bool services_too) const {
  return std::any_of(children_.begin(), children_.end(),
                     [&](const auto& child) { return child->pid != 0 && (services_too || !child->service); });
}

int Supervisor::poll_timeout() const {
  if (kill_at_ == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(kill_at_ - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

void Supervisor::handle_events() {
  std::vector<pollfd> fds{{signal_fd_, POLLIN, 0}, {exits_, POLLIN, 0}, {ending_ ? -1 : lifeline_, POLLIN, 0}};
  for (const auto& child : children_)
    for (const auto* lines : {child->output.get(), child->errors.get()}) fds.push_back({lines->fd(), POLLIN, 0});
  poll(fds.data(), fds.size(), poll_timeout());
  for (const auto& child : children_)
    for (auto* lines : {child->output.get(), child->errors.get()}) lines->copy();
  handle_signals();
  char byte;
  if (fds[2].revents && read(lifeline_, &byte, 1) <= 0) {
    if (status_ == 0) status_ = 128 + SIGHUP;
    end_all(SIGTERM);
  }
  reap();
  if (Clock::now() >= kill_at_) {
    std::fprintf(stderr, "dsgd run: killing the workers that did not end within --grace\n");
    kill_all(SIGKILL);
    kill_at_ = Clock::time_point::max();
  }
}

void Supervisor::wait_until(const std::function<bool()>& enough) {
  while (anything_runs(true) && !enough()) handle_events();
}

int Supervisor::wait() {
  while (anything_runs(false)) handle_events();
  end_services();
  while (anything_runs(true)) handle_events();
  for (const auto& child : children_)
    for (auto* lines : {child->output.get(), child->errors.get()}) lines->finish();
  children_.clear();
  if (!first_failure_.empty()) std::fprintf(stderr, "dsgd run: %s\n", first_failure_.c_str());
  return status_;
}

void Supervisor::handle_signals() {
  signalfd_siginfo info;
  while (::read(signal_fd_, &info, sizeof info) == sizeof info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (status_ == 0) status_ = 128 + number;
    // A service sees the others go, and would report as a failure what the user has asked for.
    for (const auto& child : children_)
      if (child->service) child->errors->discard();
    end_all(ending_ ? SIGKILL : number);
  }
}

void Supervisor::reap() {
  epoll_event events[16];
  for (int count; (count = epoll_wait(exits_, events, std::size(events), 0)) > 0;)
    for (int i = 0; i < count; ++i) ended(*static_cast<Running*>(events[i].data.ptr));
}

void Supervisor::ended(Running& child) {
  close(std::exchange(child.pidfd, -1));
  // The zombie is kept until its group has been killed, so that the group's number cannot belong to others.
  kill(-child.pid, SIGKILL);
  guard_.forget(child.pid);
  int wait_status = 0;
  waitpid(child.pid, &wait_status, 0);
  child.pid = 0;
  child.close_input();
  child.output->copy();
  child.errors->copy();
  const int status = exit_status(wait_status);
  if (status == 0 || ending_ || child.service) return;
  if (status_ == 0) status_ = status;
  const std::string how = (WIFSIGNALED(wait_status) ? "was killed by signal " + std::to_string(WTERMSIG(wait_status))
                                                    : "failed with status " + std::to_string(status));
  const bool others = anything_runs(true);
  std::fprintf(stderr, "dsgd run: [%s] %s %s%s\n", child.name.c_str(), child.command.c_str(), how.c_str(),
               others ? "; ending the others" : "");
  // A supervised `dsgd run` has named the worker itself.
  const std::string& last = child.errors->last_line();
  if (const size_t at = std::string("dsgd run: ").size(); last.rfind("dsgd run: worker ", 0) == 0 && last.find(" failed first: ") != std::string::npos)
    first_failure_ = last.substr(at) + " (" + child.kind + " " + child.name + ")";
  else if (children_.size() > 1 || lifeline_ >= 0)
    first_failure_ = child.kind + " " + child.name + " failed first: " + child.command + " " + how;
  end_all(SIGTERM);
}

void Supervisor::end_all(int signal) {
  kill_all(signal);
  if (ending_) return;
  ending_ = true;
  kill_at_ = Clock::now() + grace_;
}

void Supervisor::end_services() {
  if (ending_ || !anything_runs(true)) return;
  end_all(SIGTERM);
}

void Supervisor::kill_all(int signal) {
  for (const auto& child : children_) {
    if (!child->pid) continue;
    if (child->input >= 0 && signal != SIGKILL) {
      child->close_input();
    } else {
      kill(-child->pid, signal);
    }
  }
}

}  // namespace dsgd_tool

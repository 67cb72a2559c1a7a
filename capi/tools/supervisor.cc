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
#include <filesystem>
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
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw Failure(std::string("cannot create a pipe: ") + std::strerror(errno));
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
  auto variables = own_environment();
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

int milliseconds_until(Clock::time_point time) {
  if (time == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

void update(WaitNote& note, bool waits, const std::string& why) {
  if (waits) {
    note.begin(why);
  } else {
    note.end();
  }
}

int exit_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace

std::map<std::string, std::string, std::less<>> own_environment() {
  std::map<std::string, std::string, std::less<>> variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

struct Supervisor::Running : Child {
  Running(const Child& child, pid_t pid) : Child(child), pid(pid) {}
  ~Running() {
    close_input();
    if (pidfd >= 0) close(pidfd);
  }
  void close_input() {
    if (input_fd >= 0) close(std::exchange(input_fd, -1));
  }
  bool runs_rank(int rank) const {
    return first_rank >= 0 && first_rank <= rank && rank < first_rank + workers;
  }
  // A worker that runs, and is not known to be on its way out of the job.
  bool is_at_work() const { return pid != 0 && workers > 0 && !dismissed && !left && !lost; }
  bool has_exited() const {
    pollfd exit{pidfd, POLLIN, 0};
    return pid == 0 || poll(&exit, 1, 0) > 0;
  }

  bool succeeded = false;  // it has ended with status 0
  bool dismissed = false;  // its end has been asked for, and is no failure
  bool left = false;       // it has left the job in good order
  bool lost = false;       // from the job, while the others went on
  // Of a lost one: the next signal that it gets, and when.
  int next_signal = SIGTERM;
  Clock::time_point signal_at = Clock::time_point::max();
  pid_t pid;  // also its process group; 0 once it has been reaped
  int pidfd = -1, input_fd = -1;
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
  if (signal_fd_ < 0 || exits_ < 0)
    throw Failure(std::string("cannot create a signalfd or an epoll: ") + std::strerror(errno));
}

Supervisor::~Supervisor() {
  kill_all();
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
    guard_.watch(getpid());  // before the command has children of its own, whom only the guard can end
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
  auto running = std::make_unique<Running>(child, pid);
  failure.close_write();
  int number = 0;
  if (read(failure.read, &number, sizeof number) == sizeof number) {  // end of file: exec went well
    guard_.forget(pid);
    waitpid(pid, nullptr, 0);
    const std::string& program = child.command[0];
    std::error_code ignored;
    const bool is_file = std::filesystem::is_regular_file(program, ignored);
    const char* remedy = "";
    if (is_file && number == EACCES)
      remedy = "; make it executable (chmod +x), or run it by its interpreter: dsgd run -- python3 FILE";
    else if (is_file && number == ENOENT)
      remedy = program.find('/') == std::string::npos
                   ? "; for the file in this folder write ./ before its name"
                   : "; the interpreter in its first line does not exist";
    else if (number == ENOENT)
      remedy = "; check the path, or install the program on this node";
    throw Failure("cannot run '" + program + "': " + std::strerror(number) + remedy);
  }
  running->output = std::make_unique<LineOutput>(output.take_read(), STDOUT_FILENO, child.prefix.value_or(""),
                                                 child.on_line);
  running->errors =
      std::make_unique<LineOutput>(errors.take_read(), STDERR_FILENO, child.prefix.value_or(""));
  if (child.input) {
    input.close_read();  // so that a child that has gone is noticed
    running->input_fd = input.take_write();
    write_all(running->input_fd, *child.input);
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

// Returns the number of workers in children for which `counts` returns true.
template <typename Counts>
uint32_t Supervisor::count_workers(Counts counts) const {
  uint32_t count = 0;
  for (const auto& child : children_) {
    if (counts(*child)) count += static_cast<uint32_t>(child->workers);
  }
  return count;
}

uint32_t Supervisor::good_workers() const {
  return count_workers(
      [](const Running& child) { return child.succeeded || (child.pid != 0 && !child.lost); });
}

uint32_t Supervisor::succeeded_workers() const {
  return count_workers(
      [](const Running& child) { return child.succeeded || (child.pid != 0 && child.left); });
}

uint32_t Supervisor::running_workers() const {
  return count_workers([](const Running& child) { return child.is_at_work(); });
}

void Supervisor::note_left(const std::set<std::string>& ids) {
  for (const auto& child : children_) child->left = ids.contains(child->worker_id);
}

void Supervisor::note_lost(const std::set<std::string>& ids) {
  for (const auto& child : children_) {
    if (ending_ || !ids.contains(child->worker_id) || child->lost || child->dismissed || child->has_exited())
      continue;
    std::fprintf(stderr, "dsgd run: [%s] %s is no longer in the job; ending it\n", child->name.c_str(),
                 child->command[0].c_str());
    child->lost = true;
    child->signal_at = Clock::now() + grace_ / 2;
    kill(-child->pid, SIGCONT);
  }
}

// Sends the next signal to a lost worker, if it is due.
void Supervisor::press(Running& child) {
  if (Clock::now() < child.signal_at) return;
  const bool last = child.next_signal == SIGKILL;
  stop(child, std::exchange(child.next_signal, SIGKILL));
  child.signal_at = last ? Clock::time_point::max() : Clock::now() + grace_ / 2;
}

std::string Supervisor::stop_worker() {
  const auto last = std::find_if(children_.rbegin(), children_.rend(),
                                 [](const auto& child) { return child->is_at_work(); });
  if (last == children_.rend()) return "";
  (*last)->dismissed = true;
  stop(**last, SIGKILL);
  return (*last)->worker_id;
}

Clock::time_point Supervisor::next_event() const {
  auto next = awaited_ ? std::min(kill_at_, await_until_) : kill_at_;
  for (const auto& child : children_) next = std::min(next, child->signal_at);
  if (ending_) return next;  // notes are no longer printed
  if (task_) next = std::min(next, task_at_);
  for (const auto& note : notes_) next = std::min(next, note->due());
  return next;
}

void Supervisor::announce_joins(std::shared_ptr<WaitNote> head, std::shared_ptr<WaitNote> others) {
  announce(head_ = std::move(head));
  announce(others_ = std::move(others));
}

void Supervisor::follow_joins() {
  reports_.take();
  if (!head_) return;
  const bool waits = reports_.any_waits();
  update(*others_, waits, reports_.progress());
  update(*head_, reports_.any_dials() && !waits,
         reports_.head_error().empty() ? "no answer yet" : reports_.head_error());
}

// A job begins with all workers. If one has ended without joining, those that wait for it wait in vain.
void Supervisor::blame_unjoined() {
  if (!unjoined_ || ending_ || reports_.joins() > 0 || !reports_.any_waits()) return;
  const Running& child = *unjoined_;
  const std::string first = std::to_string(child.first_rank);
  const std::string who = child.kind == "worker" ? child.command[0]
                          : child.workers == 1   ? "worker " + first
                                                 : "workers " + first + " to " +
                                                       std::to_string(child.first_rank + child.workers - 1);
  report_first_failure(child, who + " ended without joining the job; the other workers wait for it", 1);
}

void Supervisor::handle_events() {
  std::vector<pollfd> fds{{signal_fd_, POLLIN, 0},
                          {exits_, POLLIN, 0},
                          {ending_ ? -1 : lifeline_, POLLIN, 0},
                          {reports_.fd(), POLLIN, 0}};
  for (const auto& child : children_)
    for (const auto* lines : {child->output.get(), child->errors.get()})
      fds.push_back({lines->fd(), POLLIN, 0});
  poll(fds.data(), fds.size(), milliseconds_until(next_event()));
  for (const auto& child : children_)
    for (auto* lines : {child->output.get(), child->errors.get()}) lines->copy();
  follow_joins();
  handle_signals();
  char byte;
  if (fds[2].revents && read(lifeline_, &byte, 1) <= 0) {
    if (status_ == 0) status_ = 128 + SIGHUP;
    interrupt(SIGTERM);
  }
  reap();
  blame_unjoined();  // here, so that a worker that has failed is blamed first
  if (!ending_)
    for (const auto& note : notes_) note->print_if_due();
  if (!ending_ && task_ && Clock::now() >= task_at_) {
    task_();
    task_at_ = Clock::now() + interval_;
  }
  for (const auto& child : children_) press(*child);
  if (awaited_ && Clock::now() >= await_until_) stop(*std::exchange(awaited_, nullptr), SIGTERM);
  if (Clock::now() >= kill_at_) {
    std::fprintf(stderr, "dsgd run: killing the workers that did not end within --grace\n");
    kill_all();
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
  int output_error = 0;
  for (const auto& child : children_)
    for (auto* lines : {child->output.get(), child->errors.get()}) {
      lines->finish();
      // EPIPE: `| head` reads what it wants.
      if (lines->error() && lines->error() != EPIPE) output_error = lines->error();
    }
  children_.clear();
  if (output_error) {
    std::fprintf(stderr, "dsgd run: cannot write the output of the workers: %s\n",
                 std::strerror(output_error));
    if (status_ == 0) status_ = 1;
  }
  if (!first_failure_.empty()) std::fprintf(stderr, "%s\n", first_failure_.c_str());
  return status_;
}

void Supervisor::reset() {
  reports_.reset();
  notes_.clear();
  head_.reset(), others_.reset();
  unjoined_ = nullptr;
  replace_ = nullptr;
  task_ = nullptr;
  awaited_ = nullptr;
  status_ = tolerated_ = 0;
  first_failure_.clear();
  ending_ = false;
  kill_at_ = Clock::time_point::max();
}

void Supervisor::handle_signals() {
  signalfd_siginfo info;
  while (::read(signal_fd_, &info, sizeof info) == sizeof info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (status_ == 0) status_ = 128 + number;
    // The head sees the workers end. It would report that as a failure, but the user has asked for it.
    for (const auto& child : children_)
      if (child->service) child->errors->discard();
    interrupt(ending_ ? SIGKILL : number);
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
  child.signal_at = Clock::time_point::max();
  child.close_input();
  child.output->copy();
  child.errors->copy();
  reports_.take();  // all that it has reported
  reports_.forget(child.first_rank);
  const int status = child.lost ? std::max(exit_status(wait_status), 1) : exit_status(wait_status);
  child.succeeded = status == 0;
  if (child.succeeded && child.first_rank >= 0) unjoined_ = &child;
  follow_joins();
  const bool awaited = awaited_ == &child;
  if (awaited) awaited_ = nullptr;
  if (status == 0 || child.service || (ending_ && !awaited)) return;
  if (child.dismissed) {
    std::fprintf(stderr, "dsgd run: [%s] was stopped; the others go on\n", child.name.c_str());
    return;
  }
  const std::string how = WIFSIGNALED(wait_status)
                              ? " was killed by signal " + std::to_string(WTERMSIG(wait_status))
                          : wait_status == 0 ? " has ended"
                                             : " failed with status " + std::to_string(status);
  const bool others_go_on = child.lost || (min_workers_ > 0 && good_workers() >= min_workers_ &&
                                           child.workers > 0 && reports_.joins() > 0);
  if (!ending_ && others_go_on) {
    tolerated_ = status;
    const bool replaced = replace_ && replace_(child.first_rank);
    const char* const others = ending_    ? ""
                               : replaced ? "; it is started again"
                                          : "; the head decides whether the others go on";
    std::fprintf(stderr, "dsgd run: [%s] %s%s%s\n", child.name.c_str(), child.command[0].c_str(), how.c_str(),
                 others);
    return;
  }
  report_first_failure(child, child.command[0] + how, status);
}

// Called for the first child that fails, for the child that its failure names, and for a child that ends
// without joining the job that others wait for.
void Supervisor::report_first_failure(const Running& child, const std::string& how, int status) {
  FailureLine failure{child.kind + " " + child.name, reports_.cause(child.first_rank), how, tolerated_ == 0};
  if (ending_ || child.runs_rank(failure.cause)) failure.cause = -1;
  const auto line = FailureLine::parse(child.errors->last_line());  // a supervised `dsgd run` knows more
  if (line) failure = *line;
  std::string why = failure.cause < 0 ? "" : " because of rank " + std::to_string(failure.cause);
  for (const auto& other : children_)
    if (other->succeeded && other->runs_rank(failure.cause)) why += ", which has ended with status 0";
  const bool others = !ending_ && anything_runs(true);
  std::fprintf(stderr, "dsgd run: [%s] %s%s%s\n", child.name.c_str(), how.c_str(), why.c_str(),
               others ? "; ending the others" : "");
  if (ending_ || status_ == 0) status_ = status;
  if (children_.size() > 1 || lifeline_ >= 0) {
    first_failure_ = failure.text() + (line ? " (" + child.kind + " " + child.name + ")" : "");
  }
  if (ending_) return;
  for (const auto& other : children_)
    if (other->pid && other->runs_rank(failure.cause)) awaited_ = other.get();
  end_all(SIGTERM);
}

void Supervisor::fail(const std::string& why) {
  if (ending_) return;
  std::fprintf(stderr, "dsgd run: %s; ending the workers\n", why.c_str());
  if (status_ == 0) status_ = tolerated_ ? tolerated_ : 1;
  end_all(SIGTERM);
}

// The user, or the `dsgd run` that supervises this one, ends the job.
void Supervisor::interrupt(int signal) {
  interrupted_ = true;
  if (!ending_)
    for (const auto& note : notes_) note->print_interrupted();
  awaited_ = nullptr;
  end_all(signal);
}

void Supervisor::end_all(int signal) {
  for (const auto& child : children_)
    if (child.get() != awaited_) stop(*child, signal);
  if (ending_) return;
  ending_ = true;
  kill_at_ = Clock::now() + grace_;
  await_until_ = Clock::now() + grace_ / 2;
}

void Supervisor::end_services() {
  if (ending_ || !anything_runs(true)) return;
  end_all(SIGTERM);
}

void Supervisor::stop(Running& child, int signal) {
  if (!child.pid) return;
  if (child.input_fd >= 0 && signal != SIGKILL) {
    child.close_input();
  } else {
    kill(-child.pid, signal);
  }
}

void Supervisor::kill_all() {
  awaited_ = nullptr;
  for (const auto& child : children_) stop(*child, SIGKILL);
}

}  // namespace dsgd_tool

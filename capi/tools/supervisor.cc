#include "capi/tools/supervisor.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "capi/tools/output_queue.h"
#include "capi/tools/remote.h"

namespace dsgd_tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLongestPoll{1};
constexpr std::chrono::seconds kReaderPatience{1};  // without progress, once the job has been interrupted

const std::array<OutputQueue*, 2>& queues() {
  static const std::array<OutputQueue*, 2> both = {&OutputQueue::of(STDOUT_FILENO),
                                                   &OutputQueue::of(STDERR_FILENO)};
  return both;
}

void add_queues(std::vector<pollfd>* fds) {
  for (const auto* queue : queues()) fds->push_back({queue->empty() ? -1 : queue->fd(), POLLOUT, 0});
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

}  // namespace

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
  if (signal_fd_ < 0 || exits_ < 0) throw system_failure("cannot create a signalfd or an epoll");
}

Supervisor::~Supervisor() {
  kill_all();
  for (const auto& child : children_)
    if (const pid_t pid = std::exchange(child->pid, 0)) {  // else a signal would go to another process
      guard_.forget(pid);
      waitpid(pid, nullptr, 0);
    }
  write_output();
  close(signal_fd_);
  close(exits_);
}

void Supervisor::start(const Child& child) {
  auto started = start_child(child, &guard_, old_mask_);
  epoll_event event{.events = EPOLLIN, .data = {.ptr = started.get()}};
  started->pidfd = static_cast<int>(syscall(SYS_pidfd_open, started->pid, 0));  // glibc's wrapper came late
  if (started->pidfd < 0 || epoll_ctl(exits_, EPOLL_CTL_ADD, started->pidfd, &event) != 0) {
    const Failure failure = system_failure("cannot watch a child process");
    kill(-started->pid, SIGKILL);
    guard_.forget(started->pid);
    waitpid(started->pid, nullptr, 0);
    throw failure;
  }
  children_.push_back(std::move(started));
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
      [](const ChildProcess& child) { return child.succeeded || (child.pid != 0 && !child.lost); });
}

bool Supervisor::enough_are_left() const {
  const uint32_t own = good_workers();
  if (own >= min_workers_ || !ask_head_) return own >= min_workers_;
  std::set<std::string> ids;
  for (const auto& child : children_) ids.insert(child->worker_id);
  const auto job = ask_head_();
  if (!job) return false;
  return own + count_others(job->present, ids) + count_others(job->left, ids) >= min_workers_;
}

// Whether a command has ended before its worker, which is still in the job.
bool Supervisor::leaves_worker_behind(const ChildProcess& child) const {
  if (!ask_head_ || ending_ || !child.is_at_work()) return false;
  const auto job = ask_head_();
  if (!job) return false;
  const auto worker = job->present.find(child.worker_id);
  return worker != job->present.end() && worker->second != child.pid &&
         runs_in_group(worker->second, child.pid);
}

uint32_t Supervisor::succeeded_workers() const {
  return count_workers(
      [](const ChildProcess& child) { return child.succeeded || (child.pid != 0 && child.left); });
}

uint32_t Supervisor::running_workers() const {
  return count_workers([](const ChildProcess& child) { return child.is_at_work(); });
}

void Supervisor::note_left(const std::map<std::string, pid_t>& workers) {
  for (const auto& child : children_) child->left = workers.contains(child->worker_id);
}

void Supervisor::note_lost(const std::map<std::string, pid_t>& workers) {
  for (const auto& child : children_) {
    const auto lost = workers.find(child->worker_id);
    if (ending_ || lost == workers.end() || child->lost || child->dismissed || child->has_exited()) continue;
    // At the address of a head elsewhere, the head of another job may serve, whose workers have the same ids.
    if (!ask_head_ && getpgid(lost->second) != child->pid) continue;
    print_message("dsgd run: [%s] %s is no longer in the job; ending it\n", child->name.c_str(),
                  child->command[0].c_str());
    child->lost = true;
    child->signal_at = Clock::now() + grace_ / 2;
    kill(-child->pid, SIGCONT);
  }
}

// Sends the next signal to a lost worker, if it is due.
void Supervisor::signal_lost_worker(ChildProcess& child) {
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

void Supervisor::handle_events() {
  std::vector<pollfd> fds{{signal_fd_, POLLIN, 0},
                          {exits_, POLLIN, 0},
                          {ending_ ? -1 : supervisor_fd_, POLLIN, 0},
                          {reports_.fd(), POLLIN, 0}};
  for (const auto& child : children_) {
    for (const auto* lines : {child->output.get(), child->errors.get()})
      fds.push_back({lines->wants_input() ? lines->fd() : -1, POLLIN, 0});
    fds.push_back({child->unwritten.empty() ? -1 : child->input_fd, POLLOUT, 0});
  }
  add_queues(&fds);
  // The head's thread can add log records during poll(), so poll() lasts a second at most.
  poll(fds.data(), fds.size(), milliseconds_until(std::min(next_event(), Clock::now() + kLongestPoll)));
  for (auto* queue : queues()) queue->write_some();
  for (const auto& child : children_) {
    for (auto* lines : {child->output.get(), child->errors.get()}) lines->copy();
    child->write_input();
  }
  follow_joins();
  handle_signals();
  if (fds[2].revents) on_supervisor_input();
  reap();
  blame_unjoined();  // here, so that a worker that has failed is blamed first
  if (!ending_)
    for (const auto& note : notes_) note->print_if_due();
  if (!ending_ && task_ && Clock::now() >= task_at_) {
    task_();
    task_at_ = Clock::now() + interval_;
  }
  for (const auto& child : children_) signal_lost_worker(*child);
  if (awaited_ && Clock::now() >= await_until_) stop(*std::exchange(awaited_, nullptr), SIGTERM);
  if (Clock::now() >= kill_at_) {
    print_message("dsgd run: killing the workers that did not end within --grace\n");
    kill_all();
    kill_at_ = Clock::time_point::max();
  }
}

// If the connection to the `dsgd run` that supervises this one is lost, the job may go on without the workers
// here. SIGTERM would be wrong then: on it, many programs ask the workers of all hosts to stop.
void Supervisor::on_supervisor_input() {
  char byte = 0;
  const bool asked = read(supervisor_fd_, &byte, 1) == 1 && byte == kInterrupt;
  if (status_ == 0) status_ = 128 + SIGHUP;
  interrupt(asked || min_workers_ == 0 ? SIGTERM : SIGKILL);
}

void Supervisor::wait_until(const std::function<bool()>& enough) {
  while (anything_runs(true) && !enough()) handle_events();
}

int Supervisor::wait() {
  while (anything_runs(false)) handle_events();
  if (!ending_ && anything_runs(true)) end_all(SIGTERM);  // the services
  while (anything_runs(true)) handle_events();
  for (const auto& child : children_)
    for (auto* lines : {child->output.get(), child->errors.get()}) lines->finish();
  children_.clear();
  if (!first_failure_.empty()) print_message("%s\n", first_failure_.c_str());
  return status_;
}

int Supervisor::finish() {
  write_output();
  for (auto* queue : queues()) {
    const int error = queue->take_error();
    if (error == 0 || error == EPIPE) continue;  // EPIPE: `| head` reads what it wants
    print_message("dsgd run: cannot write the output of the workers: %s\n", std::strerror(error));
    if (status_ == 0) status_ = 1;
  }
  return status_;
}

// Waits until the remaining output is written; after an interrupt, until discard_output_at_ at most, or
// longer while the reader reads.
void Supervisor::write_output() {
  Clock::time_point last_write = Clock::now();
  const auto all_written = [] {
    return std::all_of(queues().begin(), queues().end(), [](auto* queue) { return queue->empty(); });
  };
  for (;;) {
    for (auto* queue : queues())
      if (queue->write_some()) last_write = Clock::now();
    if (all_written()) return;
    const auto end = std::max(discard_output_at_, last_write + kReaderPatience);
    if (Clock::now() >= end) break;
    std::vector<pollfd> fds{{signal_fd_, POLLIN, 0}};
    add_queues(&fds);
    poll(fds.data(), fds.size(), milliseconds_until(end));
    handle_signals();
  }
  for (auto* queue : queues()) queue->discard();
  print_message("dsgd run: the rest of the output is lost, since nobody reads it\n");
}

void Supervisor::reset() {
  reports_.reset();
  notes_.clear();
  head_.reset(), others_.reset();
  unjoined_ = nullptr;
  replace_ = nullptr;
  ask_head_ = nullptr;
  task_ = nullptr;
  awaited_ = nullptr;
  status_ = tolerated_ = 0;
  first_failure_.clear();
  lost_service_.clear();
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
    for (int i = 0; i < count; ++i) on_exit(*static_cast<ChildProcess*>(events[i].data.ptr));
}

// The user, or the `dsgd run` that supervises this one, ends the job.
void Supervisor::interrupt(int signal) {
  discard_output_at_ = interrupted_ ? Clock::now() : Clock::now() + grace_;
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

void Supervisor::stop(ChildProcess& child, int signal) {
  if (!child.pid) return;
  if (signal == SIGKILL || !child.interrupt()) kill(-child.pid, signal);
}

void Supervisor::kill_all() {
  awaited_ = nullptr;
  for (const auto& child : children_) stop(*child, SIGKILL);
}

}  // namespace dsgd_tool

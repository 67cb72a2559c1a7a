// Child processes in process groups of their own. Their output is copied line by line; if its reader stalls,
// they wait, and this process does not. They are ended together: all have ended when wait() returns, and all
// are killed when this process dies.
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "capi/tools/child_process.h"
#include "capi/tools/group_guard.h"
#include "capi/tools/tool.h"
#include "capi/tools/wait_note.h"
#include "capi/tools/worker_reports.h"

namespace dsgd_tool {

class Supervisor {
 public:
  // To be made before there are threads: it forks, and blocks the signals that it waits for in all threads
  // made later. `grace` lies between SIGTERM and SIGKILL.
  explicit Supervisor(std::chrono::milliseconds grace);
  ~Supervisor();  // kills what still runs
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Prints `note` when it is due, and at an interrupt.
  void announce(std::shared_ptr<WaitNote> note) { notes_.push_back(std::move(note)); }
  // Activates `others` while a worker waits for the job to begin, else `head` while a worker dials the head.
  void announce_joins(std::shared_ptr<WaitNote> head, std::shared_ptr<WaitNote> others);
  // Throws a Failure if the command cannot be started.
  void start(const Child& child);
  // Interrupts the children when the `dsgd run` at the other end of `fd` asks for it, or is lost; see
  // remote.h.
  void set_supervisor_input(int fd) { supervisor_fd_ = fd; }
  // Waits until `enough`, or until all children have ended.
  void wait_until(const std::function<bool()>& enough);
  // Waits until all children have ended. Returns 0, or the exit status of the child that failed first. If
  // that child's failure names a worker of another child, and the other child then fails too, returns the
  // other child's status. After an interrupt returns 128 + the signal, after fail() the status that it names.
  int wait();
  // After the last wait(): waits for the reader of the output. Returns the status of wait(), or instead of 0
  // that of an interrupt, or 1 if output of workers was lost.
  int finish();
  // The reports of the workers. Those on other hosts come from the `dsgd run` there.
  WorkerReports& reports() { return reports_; }
  // Once the job has begun, a child with workers may fail without ending the others if at least `min_workers`
  // workers are left, one of them in another child. 0: no child may fail. `ask_head` returns the state of the
  // job, in which others may have started workers, too. After a failure that is tolerated, `replace` is
  // called with the child's rank. It returns the end of the message ("it is started again"), or "" if it has
  // done nothing. It may call fail().
  void tolerate_failures(uint32_t min_workers, std::function<std::string(int first_rank)> replace,
                         std::function<std::optional<JobState>()> ask_head) {
    min_workers_ = min_workers;
    replace_ = std::move(replace);
    ask_head_ = std::move(ask_head);
  }
  // As tolerate_failures(), but for a head elsewhere: a child may fail while another worker is left here.
  // That head decides whether the job goes on; if it does not, the others fail by themselves.
  void leave_failures_to_head(uint32_t min_workers) {
    min_workers_ = std::min(min_workers, 1U);
    ask_head_ = nullptr;
  }
  // The job has begun before the children start.
  void join_running_job() { job_runs_ = true; }
  // Calls `task` every `interval`, until the children have to end.
  void repeat(std::chrono::milliseconds interval, std::function<void()> task) {
    interval_ = interval;
    task_ = std::move(task);
    task_at_ = std::chrono::steady_clock::now() + interval;
  }
  // Records the workers that have left in good order, by id.
  void note_left(const std::map<std::string, pid_t>& workers);
  // Records the workers that were lost while the others went on, by id, and their processes. They count as
  // failed, even if they still run. Continues those that are stopped. Each has half of the grace to end by
  // itself, then gets SIGTERM, and SIGKILL when the grace is over.
  void note_lost(const std::map<std::string, pid_t>& workers);
  // Returns the number of workers that run, without those that have left, were lost or have been stopped.
  uint32_t running_workers() const;
  // Returns the number of workers that have ended with status 0, or have left and still run.
  uint32_t succeeded_workers() const;
  // Ends all children. The status is that of the last failure that was tolerated, or 1.
  void fail(const std::string& why);
  // Kills the worker that was started last, and returns its id. This is no failure. It uses SIGKILL, since on
  // SIGTERM many programs ask all workers to stop.
  std::string stop_worker();
  // Whether the user, or the `dsgd run` that supervises this one, has ended the children.
  bool interrupted() const { return interrupted_; }
  // After wait(): forgets these children, so that others can be started.
  void reset();

 private:
  void handle_events();
  void handle_signals();
  void write_output();
  void on_supervisor_input();
  void signal_lost_worker(ChildProcess& child);
  void reap();
  void on_exit(ChildProcess& child);
  void report_first_failure(const ChildProcess& child, const std::string& how, int status);
  void follow_joins();
  void blame_unjoined();
  void interrupt(int signal);
  void end_all(int signal);
  void stop(ChildProcess& child, int signal);
  void kill_all();
  bool job_has_begun() const { return job_runs_ || reports_.joins() > 0; }
  bool anything_runs(bool services_too) const;
  template <typename Counts>
  uint32_t count_workers(Counts counts) const;
  uint32_t good_workers() const;
  bool enough_are_left() const;
  bool leaves_worker_behind(const ChildProcess& child) const;
  std::chrono::steady_clock::time_point next_event() const;

  const std::chrono::milliseconds grace_;
  GroupGuard guard_;
  sigset_t old_mask_;
  int signal_fd_ = -1;
  int exits_ = -1;  // epoll of the children's pidfds, which it gives in the order in which they have ended
  int supervisor_fd_ = -1;
  WorkerReports reports_;
  std::vector<std::shared_ptr<WaitNote>> notes_;
  std::shared_ptr<WaitNote> head_, others_;
  std::vector<std::unique_ptr<ChildProcess>> children_;
  const ChildProcess* unjoined_ = nullptr;  // the last child with workers that exited with status 0
  int status_ = 0;                          // exit status of the failure that ends the children
  int tolerated_ = 0;                       // exit status of the last failure that did not end them
  uint32_t min_workers_ = 0;
  std::function<std::string(int)> replace_;
  std::function<std::optional<JobState>()> ask_head_;  // null if the head is elsewhere
  std::function<void()> task_;
  std::chrono::milliseconds interval_{};
  std::chrono::steady_clock::time_point task_at_;
  std::string first_failure_, lost_service_;  // messages
  bool ending_ = false, interrupted_ = false, job_runs_ = false;
  ChildProcess* awaited_ = nullptr;  // the first failure names it; it has until await_until_ to end by itself
  std::chrono::steady_clock::time_point await_until_;
  std::chrono::steady_clock::time_point kill_at_ = std::chrono::steady_clock::time_point::max();
  // After an interrupt: when output that is not read is discarded.
  std::chrono::steady_clock::time_point discard_output_at_ = std::chrono::steady_clock::time_point::max();
};

}  // namespace dsgd_tool

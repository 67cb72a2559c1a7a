// Handles the end of a child: whether the others go on, and which failure is reported.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "capi/tools/failure_line.h"
#include "capi/tools/output_queue.h"
#include "capi/tools/supervisor.h"

namespace dsgd_tool {
namespace {

int exit_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace

// A job begins with all workers. If one has ended without joining, those that wait for it wait in vain.
void Supervisor::blame_unjoined() {
  if (!unjoined_ || ending_ || job_has_begun() || !reports_.any_waits()) return;
  const ChildProcess& child = *unjoined_;
  const std::string first = std::to_string(child.first_rank);
  const std::string who = child.kind == "worker" ? child.command[0]
                          : child.workers == 1   ? "worker " + first
                                                 : "workers " + first + " to " +
                                                       std::to_string(child.first_rank + child.workers - 1);
  report_first_failure(child, who + " ended without joining the job; the other workers wait for it", 1);
}

void Supervisor::on_exit(ChildProcess& child) {
  close(std::exchange(child.pidfd, -1));
  siginfo_t end{};
  waitid(P_PID, static_cast<id_t>(child.pid), &end, WEXITED | WNOWAIT);
  const bool left_behind = end.si_code == CLD_EXITED && end.si_status == 0 && leaves_worker_behind(child);
  // The zombie is kept until its group has been killed, so that the group's number cannot belong to others.
  const pid_t group = child.pid;
  kill(-group, SIGKILL);
  guard_.forget(group);
  int wait_status = 0;
  waitpid(group, &wait_status, 0);
  child.pid = 0;
  child.signal_at = std::chrono::steady_clock::time_point::max();
  child.close_input();
  child.output->copy_all();
  child.errors->copy_all();
  reports_.take();  // all that it has reported
  reports_.forget({child.first_rank, 0});
  reports_.forget({-1, group});
  const int least = child.lost || left_behind ? 1 : 0;
  const int status = std::max(exit_status(wait_status), least);
  child.succeeded = status == 0;
  if (child.succeeded && child.workers > 0) unjoined_ = &child;
  follow_joins();
  const bool awaited = awaited_ == &child;
  if (awaited) awaited_ = nullptr;
  if (status == 0 || (ending_ && !awaited)) return;
  if (child.dismissed) {
    print_message("dsgd run: [%s] was stopped; the others go on\n", child.name.c_str());
    return;
  }
  const std::string how = WIFSIGNALED(wait_status)
                              ? " was killed by signal " + std::to_string(WTERMSIG(wait_status))
                          : left_behind      ? " has ended before its worker, which was killed"
                          : wait_status == 0 ? " has ended"
                                             : " failed with status " + std::to_string(status);
  if (child.service) {
    if (status == 1 || children_.size() == 1) return;  // the head has said why, or run_on_hosts() does
    lost_service_ =
        "dsgd run: the " + child.kind + " " + child.name + " has ended: " + child.command[0] + how;
    print_message("%s\n", lost_service_.c_str());
    return;
  }
  // A head elsewhere may have lost other workers, too, and end the job.
  const bool head_goes_on = child.lost && ask_head_;
  const bool others_go_on =
      head_goes_on || (min_workers_ > 0 && child.workers > 0 && job_has_begun() && enough_are_left());
  if (!ending_ && others_go_on) {
    std::string then = replace_ ? replace_(child.first_rank) : "";
    if (then.empty())
      then = !lost_service_.empty() ? "the job cannot go on without its head"
             : head_goes_on         ? "the others go on"
                                    : "the head decides whether the others go on";
    if (ending_ || good_workers() > 0) {  // otherwise the head, which is here, ends
      tolerated_ = status;
      print_message("dsgd run: [%s] %s%s%s\n", child.name.c_str(), child.command[0].c_str(), how.c_str(),
                    ending_ ? "" : ("; " + then).c_str());
      return;
    }
  }
  report_first_failure(child, child.command[0] + how, status);
}

// Called for the first child that fails, for the child that its failure names, and for a child that ends
// without joining the job that others wait for.
void Supervisor::report_first_failure(const ChildProcess& child, const std::string& how, int status) {
  // Ranks change with the view.
  const int cause = min_workers_ > 0 ? -1 : reports_.cause(child.first_rank);
  FailureLine failure{child.kind + " " + child.name, cause, how, tolerated_ == 0};
  if (ending_ || child.runs_rank(failure.cause)) failure.cause = -1;
  const auto line = FailureLine::parse(child.errors->last_line());  // a supervised `dsgd run` knows more
  if (line) failure = *line;
  std::string why = failure.cause < 0 ? "" : " because of rank " + std::to_string(failure.cause);
  for (const auto& other : children_)
    if (other->succeeded && other->runs_rank(failure.cause)) why += ", which has ended with status 0";
  const bool others = !ending_ && anything_runs(true);
  print_message("dsgd run: [%s] %s%s%s\n", child.name.c_str(), how.c_str(), why.c_str(),
                others ? "; ending the others" : "");
  if (ending_ || status_ == 0) status_ = status;
  if (!lost_service_.empty()) {
    first_failure_ = lost_service_;
  } else if (children_.size() > 1 || supervisor_fd_ >= 0) {
    first_failure_ = failure.text() + (line ? " (" + child.kind + " " + child.name + ")" : "");
  }
  if (ending_) return;
  for (const auto& other : children_)
    if (other->pid && other->runs_rank(failure.cause)) awaited_ = other.get();
  end_all(SIGTERM);
}

void Supervisor::fail(const std::string& why) {
  if (ending_) return;
  print_message("dsgd run: %s; ending the workers\n", why.c_str());
  if (status_ == 0) status_ = tolerated_ ? tolerated_ : 1;
  end_all(SIGTERM);
}

}  // namespace dsgd_tool

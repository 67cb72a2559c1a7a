// The end of a job: for all workers at once, when the last one leaves, and when another head takes the job
// over.

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "core/base/while_alive.h"
#include "core/membership/job.h"

namespace dsgd {

using transport::ServerChannel;

void Job::fail_job(Status why) {
  if (!is_running()) return;
  log->error("head: the job cannot go on: " + why.message());
  cause_ = std::move(why);
  end_sessions(cause_);
}

// The sessions of all members fail with `why`.
void Job::end_sessions(const Status& why) {
  phase_ = Phase::kBroken;
  detector->stop();
  end_error_ = why;
  announce_end();
  end_after_lease();
  end_if_done();
}

void Job::announce_end() {
  transport::WatchReply reply;
  reply.cause = end_error_;
  announce(std::move(reply));
}

void Job::end_if_done() {
  if (host_leave_) {
    const bool wait =
        gathering->abort_is_pending() || std::any_of(workers.begin(), workers.end(), [&](const Worker& w) {
          return w.watches(*workers.host()) && !announcements.has_confirmed_all(w.index());
        });
    if (!wait) std::exchange(host_leave_, nullptr)(transport::Message(transport::Empty{}));
  }
  if (phase_ != Phase::kRunning && phase_ != Phase::kBroken) return;
  const bool all_closed =
      !gathering->abort_is_pending() &&
      std::all_of(workers.begin(), workers.end(), [](const Worker& w) { return !w.connects(); });
  if (all_closed) return end();
  if (!workers.has_members() && is_running() && !end_timer_set_) {
    end_timer_set_ = true;
    end_after_lease();
  }
}

void Job::end_after_lease() {
  loop_.schedule(loop_.now() + options.lease, while_alive(weak_from_this(), [](Job& self) { self.end(); }));
}

void Job::end() {
  if (is_over()) return;
  phase_ = Phase::kOver;
  detector->stop();
  log->info(cause_.ok() && end_error_.ok() ? "head: all workers have left, the job is over"
                                           : "head: the job is over");  // the reason was logged before
  durability.remove([this](const Status& status) {
    if (!status.ok()) log->warning("head: the record of the job was not removed: " + status.message());
    on_record_removed();
  });
}

void Job::stand_down(const Status& why, const std::set<ServerChannel*>& channels) {
  if (!is_over()) {
    phase_ = Phase::kOver;
    cause_ = why;
    log->error("head: " + why.message());
    detector->stop();
    gathering->stop();
    for (ServerChannel* channel : channels) channel->close();
  }
  on_record_removed();
}

void Job::on_end(std::function<void(const Status&)> ended) {
  ended_ = std::move(ended);
  notify_end();
}

// The record is removed, or belongs to another head.
void Job::on_record_removed() {
  phase_ = std::max(phase_, Phase::kRemoved);
  notify_end();
}

void Job::notify_end() {
  if (phase_ < Phase::kRemoved || !ended_) return;
  loop_.post(while_alive(weak_from_this(), [](Job& self) {
    const auto notify = std::exchange(self.ended_, nullptr);
    if (!notify) return;
    self.phase_ = Phase::kReported;
    notify(self.cause_);
  }));
}

}  // namespace dsgd

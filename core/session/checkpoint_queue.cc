#include "core/session/checkpoint_queue.h"

#include <new>
#include <string>

#include "core/base/once.h"

namespace dsgd {

CheckpointQueue::CheckpointQueue(transport::Loop& loop, std::function<bool(const CheckpointCall&)> may_begin)
    : loop_(loop), may_begin_(std::move(may_begin)), poster_(std::make_shared<transport::Poster>(loop)) {}

void CheckpointQueue::add(const SharedCall& call, std::function<void(const SharedCall&)> begin) {
  waiting_.push_back({call, std::move(begin)});
  start_next();
  if (call->done && !waiting_.empty() && waiting_.back().call == call)
    waiting_.back().timer = loop_.schedule(call->deadline, [this, call] { expire(call); });
}

void CheckpointQueue::expire(const SharedCall& call) {
  call->expired =
      Status(Code::kTimeout, std::string(kind_name(call->kind)) + " has not begun within " + call->limit +
                                 ": an earlier save or load has not ended, or the workers of the job "
                                 "are changing" +
                                 (call->follows ? ", or the others have not begun their next call" : ""));
  end(call, call->expired);
}

void CheckpointQueue::start_next() {
  if (present_ || waiting_.empty() || !may_begin_(*waiting_.front().call)) return;
  const auto [call, begin, timer] = std::move(waiting_.front());
  waiting_.pop_front();
  loop_.cancel(timer);
  present_ = call;
  begin(call);
}

void CheckpointQueue::end(const SharedCall& call, const Status& status) {
  const bool was_present = call == present_;
  if (was_present) present_.reset();
  if (const auto taken = std::exchange(call->taken, nullptr)) taken();
  if (const auto done = std::exchange(call->done, nullptr)) done(status);  // null: it has ended before
  if (was_present) start_next();
}

void CheckpointQueue::fail(const Status& why, const std::function<bool(const CheckpointCall&)>& keeps) {
  const auto waiting = std::exchange(waiting_, {});
  for (const Waiting& one : waiting) loop_.cancel(one.timer);
  if (present_ && !(keeps && keeps(*present_))) {
    loop_.cancel(file_timer_);
    end(SharedCall(present_), why);
  }
  for (const Waiting& one : waiting) end(one.call, why);
}

void CheckpointQueue::on_files(const SharedCall& call, std::function<Status()> work, Done then) {
  const Done finish = once([this, call, then = std::move(then)](const Status& status) {
    if (call != present_) return;
    loop_.cancel(file_timer_);
    then(status);
  });
  file_timer_ = loop_.schedule(call->deadline, [finish, call] {
    finish(Status(Code::kTimeout, std::string(kind_name(call->kind)) + " has not ended within " +
                                      call->limit + ": the disk of '" + call->folder + "' has not answered"));
  });
  // `files` lives as long as its work, and may outlive the session.
  const Status started =
      files_->run([files = files_, poster = poster_, finish, work = std::move(work)]() mutable {
        Status status;
        try {
          status = work();
        } catch (const std::bad_alloc&) {
          status = Status(Code::kNoMemory, "no memory to read or write a checkpoint");
        }
        work = nullptr;  // releases the snapshot, which the next save reuses
        poster->post([finish, status] { finish(status); });
      });
  if (!started.ok()) finish(started);
}

}  // namespace dsgd

#include "core/session/checkpoint_queue.h"

#include <new>
#include <string>

namespace dsgd {

CheckpointQueue::CheckpointQueue(transport::Loop& loop, std::function<bool()> may_begin)
    : loop_(loop), may_begin_(std::move(may_begin)), poster_(std::make_shared<transport::Poster>(loop)) {}

void CheckpointQueue::add(const SharedCall& call, std::function<void(const SharedCall&)> begin) {
  waiting_.emplace_back(call, std::move(begin));
  start_next();
}

void CheckpointQueue::start_next() {
  if (present_ || !may_begin_() || waiting_.empty()) return;
  const auto [call, begin] = std::move(waiting_.front());
  waiting_.pop_front();
  present_ = call;
  begin(call);
}

void CheckpointQueue::end(const SharedCall& call, const Status& status) {
  if (!call->done) return;  // a change of the view has ended it
  if (call == present_) present_.reset();
  if (const auto taken = std::exchange(call->taken, nullptr)) taken();
  std::exchange(call->done, nullptr)(status);
  start_next();
}

void CheckpointQueue::fail(const Status& why) {
  const auto waiting = std::exchange(waiting_, {});
  if (present_) {
    loop_.cancel(file_timer_);
    end(SharedCall(present_), why);
  }
  for (const auto& [call, begin] : waiting) end(call, why);
}

void CheckpointQueue::on_files(const SharedCall& call, std::function<Status()> work, Done then) {
  const auto once = std::make_shared<Done>(std::move(then));
  const Done finish = [this, once, call](const Status& status) {
    if (!*once || call != present_) return;
    loop_.cancel(file_timer_);
    std::exchange(*once, nullptr)(status);
  };
  file_timer_ = loop_.schedule(call->call->deadline, [finish, call] {
    finish(Status(Code::kTimeout, std::string(kind_name(call->kind)) + " has not ended within " +
                                      call->call->limit + ": the disk of '" + call->folder +
                                      "' has not answered"));
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
        work = nullptr;  // lets go of its memory, which the next save uses again
        poster->post([finish, status] { finish(status); });
      });
  if (!started.ok()) finish(started);
}

}  // namespace dsgd

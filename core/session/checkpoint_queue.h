// The calls that save or load checkpoints: one at a time, in the order in which they were made. Runs their
// work on the files' thread.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "core/session/checkpoint_call.h"
#include "transport/files.h"
#include "transport/loop.h"
#include "transport/poster.h"

namespace dsgd {

// On the loop.
class CheckpointQueue {
 public:
  using SharedCall = std::shared_ptr<CheckpointCall>;
  using Done = std::function<void(const Status&)>;

  // `may_begin` says whether its argument, the next call, may begin now. The owner calls start_next() when
  // the answer may have changed.
  CheckpointQueue(transport::Loop& loop, std::function<bool(const CheckpointCall&)> may_begin);
  void use_files(std::shared_ptr<transport::Files> files) { files_ = std::move(files); }
  const std::shared_ptr<transport::Files>& files() const { return files_; }  // null: there are none
  // No call is in flight. One that has ended may still wait for its turn.
  bool idle() const {
    return !present_ && std::none_of(waiting_.begin(), waiting_.end(),
                                     [](const Waiting& one) { return one.call->done != nullptr; });
  }

  // Calls `begin` when it is this call's turn. end() follows. If its deadline comes first, the call ends, but
  // keeps its turn: the other workers make the same call, and have to be told.
  void add(const SharedCall& call, std::function<void(const SharedCall&)> begin);
  void start_next();
  // Ends the call with this status, unless it has ended, and begins the next one.
  void end(const SharedCall& call, const Status& status);
  // Ends all calls, but not the present one if `keeps` returns true for it.
  void fail(const Status& why, const std::function<bool(const CheckpointCall&)>& keeps = nullptr);

  // Runs `work` on the files' thread and then `then` on the loop: with its result or a timeout. Drops `then`
  // if the call ends first.
  void on_files(const SharedCall& call, std::function<Status()> work, Done then);
  // The last call on the loop.
  void close() { poster_->close(); }

 private:
  struct Waiting {
    SharedCall call;
    std::function<void(const SharedCall&)> begin;
    transport::TimerId timer = 0;
  };
  void expire(const SharedCall& call);

  transport::Loop& loop_;
  const std::function<bool(const CheckpointCall&)> may_begin_;
  const std::shared_ptr<transport::Poster> poster_;  // for the files' thread
  std::shared_ptr<transport::Files> files_;
  std::deque<Waiting> waiting_;
  SharedCall present_;
  transport::TimerId file_timer_ = 0;
};

}  // namespace dsgd

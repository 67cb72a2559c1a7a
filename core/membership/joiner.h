// Joins a worker to the job: dials the head until it answers, and waits in the rendezvous.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/membership/member.h"

namespace dsgd {

class Joiner : public std::enable_shared_from_this<Joiner> {
 public:
  struct Joined {
    std::shared_ptr<transport::ClientChannel> channel;  // control connection to the head
    transport::JoinReply view;
  };
  // `done` is called once, on the loop, unless stop() comes first.
  Joiner(transport::Network& network, const MemberOptions& options, Log& log,
         std::function<void(Result<Joined>)> done);
  void start();
  void stop();
  // Ends without a result, and gives up the connection to the head; null: there is none.
  std::shared_ptr<transport::ClientChannel> give_up_channel();
  // "2 of 4 workers have come: ..."; empty: not known.
  const std::string& progress() const { return progress_; }

 private:
  void dial();
  void ask();
  void ask_progress();
  // To the program that started this worker.
  void report(WorkerReport::Kind kind, const std::string& text);
  void warn_of_waiting();
  Status with_rank_hint(const Status& why) const;
  void attempt_failed(const Status& why);
  void out_of_time();
  void on_answer(transport::Message message);
  void end(Result<Joined> result);
  void drop_channel();
  // Wraps a member function for a callback of this attempt; it is ignored when the attempt or the joiner is
  // over.
  template <typename F>
  auto guard(F f) {
    return [weak = weak_from_this(), number = attempt_, f = std::move(f)](auto&&... arguments) {
      auto self = weak.lock();
      if (self && !self->over_ && self->attempt_ == number)
        f(*self, std::forward<decltype(arguments)>(arguments)...);
    };
  }

  transport::Network& network_;
  transport::Loop& loop_;
  const MemberOptions& options_;
  Log& log_;
  std::function<void(Result<Joined>)> done_;

  bool over_ = false;
  transport::Time started_{};
  uint64_t attempt_ = 0;
  transport::Duration delay_;  // before the next attempt
  std::shared_ptr<transport::ClientChannel> channel_;
  Status last_error_;     // of the last attempt that failed
  std::string progress_;  // "2 of 4 workers have come: ..."; empty: never was in the rendezvous
  int32_t missing_ = -1;  // rank of the first that has not come; -1: not known
  std::string reported_;  // text of the last report()
  transport::TimerId deadline_timer_ = 0, retry_timer_ = 0, progress_timer_ = 0, warning_timer_ = 0;
};

}  // namespace dsgd

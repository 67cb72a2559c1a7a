// Joins a worker to the job: dials the head until it answers, and waits in the rendezvous.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/membership/attempts.h"
#include "core/membership/member.h"

namespace dsgd {

class Joiner : public Attempts<Joiner> {
 public:
  struct Joined {
    std::shared_ptr<transport::ClientChannel> channel;  // control connection to the head
    transport::JoinReply view;
    size_t head = 0;  // index of its address
  };
  // `done` is called once, on the loop, unless stop() comes first.
  Joiner(transport::Network& network, const MemberOptions& options, Log& log,
         std::function<void(Result<Joined>)> done);
  void start();
  void stop();
  // Ends without a result, and gives up the connection to the head; null: there is none.
  std::shared_ptr<transport::ClientChannel> give_up_channel();
  // "2 of 4 workers have joined: ..."; empty: not known.
  const std::string& progress() const { return progress_; }

 private:
  void dial();
  void ask();
  void ask_progress();
  // To the program that started this worker.
  void report(WorkerReport::Kind kind, const std::string& text);
  void warn_of_waiting();
  Status with_rank_hint(const Status& why) const;
  bool all_refuse() const;
  std::string last_error() const;
  void attempt_failed(const Status& why);
  void out_of_time();
  void on_answer(transport::Message message);
  void end(Result<Joined> result);
  void drop_channel();

  transport::Network& network_;
  transport::Loop& loop_;
  const MemberOptions& options_;
  Log& log_;
  std::function<void(Result<Joined>)> done_;

  transport::Time started_{};
  const std::vector<std::string> heads_;
  size_t head_ = 0;             // index of the one that is dialled
  std::vector<Status> errors_;  // of the last attempt at each of them
  transport::Duration delay_;   // before the next attempt
  std::shared_ptr<transport::ClientChannel> channel_;
  Status not_yet_;        // the running job has no place for this worker yet; OK: it has not said so
  std::string progress_;  // "2 of 4 workers have joined: ..."; empty: never was in the rendezvous
  int32_t missing_ = -1;  // rank of the first that has not come; -1: not known
  bool storing_ = false;  // the head answers when it has stored its record
  std::string reported_;  // text of the last report()
  transport::TimerId deadline_timer_ = 0, retry_timer_ = 0, progress_timer_ = 0, warning_timer_ = 0;
};

}  // namespace dsgd

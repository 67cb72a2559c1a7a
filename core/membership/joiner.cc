#include "core/membership/joiner.h"

#include <algorithm>
#include <utility>

#include "core/base/address.h"
#include "core/base/channels.h"
#include "core/base/describe.h"
#include "core/base/repeated_dial.h"
#include "core/base/retry.h"
#include "core/base/while_alive.h"
#include "core/membership/text.h"

namespace dsgd {
namespace {

using transport::Duration;
using transport::JoinReply;
using transport::Message;

// Of the back-off between attempts. Constants: they bound the load on the head, not how long a join may take.
constexpr Duration kFirstDelay = std::chrono::milliseconds(10);
constexpr Duration kLongestDelay = std::chrono::milliseconds(500);

// Before the first warning that the job has not begun; the others come after twice as long each time.
constexpr Duration kFirstWarning = std::chrono::seconds(3);
constexpr const char* kStoring = "it has not stored its record yet";

bool is_valid_reply(const JoinReply& reply, const transport::JoinRequest& request) {
  const auto size = static_cast<int64_t>(reply.members.size());
  const bool whole = reply.learner ? reply.rank == size - 1 : size == request.num_workers;
  return whole && reply.rank >= 0 && reply.rank < size && reply.head_rank >= -1 && reply.head_rank < size &&
         reply.members[static_cast<size_t>(reply.rank)].worker_id == request.member.worker_id;
}

}  // namespace

Joiner::Joiner(transport::Network& network, const MemberOptions& options, Log& log,
               std::function<void(Result<Joined>)> done)
    : network_(network),
      loop_(network.loop()),
      options_(options),
      log_(log),
      done_(std::move(done)),
      heads_(split_addresses(options.head)),
      errors_(heads_.size()),
      delay_(kFirstDelay) {}

void Joiner::start() {
  started_ = options_.began.value_or(loop_.now());
  deadline_timer_ = loop_.schedule(options_.deadline,
                                   while_alive(weak_from_this(), [](Joiner& self) { self.out_of_time(); }));
  // The program that started this worker warns for all of its workers.
  if (!log_.has_reporter()) {
    warning_timer_ =
        loop_.schedule(loop_.now() + kFirstWarning,
                       while_alive(weak_from_this(), [](Joiner& self) { self.warn_of_waiting(); }));
  }
  log_.report({WorkerReport::Kind::kDialing});
  dial();
}

void Joiner::warn_of_waiting() {
  const Duration waited = loop_.now() - started_;
  const bool head = storing_ || progress_.empty();
  const std::string what = head ? "the head at " + options_.head : "the other workers";
  const std::string why = storing_ ? kStoring : head ? last_error() : progress_;
  log_.warning("waiting for " + what + " (" + describe_duration(waited) + ")" +
               (why.empty() ? "" : ": " + why));
  warning_timer_ =
      loop_.schedule(loop_.now() + std::max(waited, kFirstWarning),
                     while_alive(weak_from_this(), [](Joiner& self) { self.warn_of_waiting(); }));
}

void Joiner::dial() {
  end_attempt();
  transport::DialOptions dial;
  dial.hello = options_.hello;
  dial.token = options_.token;
  const auto heads = static_cast<int64_t>(heads_.size());
  dial.deadline = std::min(options_.deadline, loop_.now() + options_.lease / heads);
  network_.dial(heads_[head_], std::move(dial),
                guard([](Joiner& self, Result<std::unique_ptr<transport::ClientChannel>> result) {
                  if (!result.ok()) return self.attempt_failed(result.status());
                  self.channel_ = std::move(result).value();
                  self.ask();
                }));
}

void Joiner::ask() {
  // A broken connection ends the call too, and so the attempt.
  channel_->call(options_.join, options_.deadline, guard([](Joiner& self, Result<Message> answer) {
                   if (!answer.ok()) return self.attempt_failed(answer.status());
                   self.on_answer(std::move(answer).value());
                 }));
  ask_progress();
}

void Joiner::ask_progress() {
  channel_->call(transport::GatheringRequest{}, options_.deadline,
                 guard([](Joiner& self, const Result<Message>& answer) {
                   const auto* reply =
                       answer.ok() ? std::get_if<transport::GatheringReply>(&answer.value()) : nullptr;
                   if (!reply) return;
                   self.storing_ = reply->storing;
                   if (reply->storing) return self.report(WorkerReport::Kind::kDialing, kStoring);
                   self.report(WorkerReport::Kind::kWaiting, reply->progress);
                   self.missing_ = reply->missing;
                   if (self.progress_ == reply->progress) return;
                   self.progress_ = reply->progress;
                   self.log_.info("waiting at the head at " + self.options_.head + ": " + self.progress_);
                 }));
  // Often enough that the last answer before the deadline is fresh. To the head, a worker that is silent for
  // a lease has gone.
  const Duration wait = std::min(options_.lease / 2, (options_.deadline - loop_.now()) / 4);
  if (wait < std::chrono::milliseconds(1)) return;
  progress_timer_ = loop_.schedule(loop_.now() + wait, guard([](Joiner& self) { self.ask_progress(); }));
}

void Joiner::report(WorkerReport::Kind kind, const std::string& text) {
  if (reported_ == text) return;
  reported_ = text;
  log_.report({kind, -1, text});
}

// Appends to the refusal of a taken rank how to choose another one: only the worker knows where its rank came
// from.
Status Joiner::with_rank_hint(const Status& why) const {
  const std::string hint =
      options_.rank_origin.empty() ? std::string("`rank`, or none") + kFirstRankHint : options_.rank_origin;
  return append_to_message(why, "give each worker its own " + hint);
}

bool Joiner::all_refuse() const {
  return std::all_of(errors_.begin(), errors_.end(),
                     [](const Status& error) { return !error.ok() && is_final(error); });
}

std::string Joiner::last_error() const { return describe_errors(heads_, errors_); }

// If a process refuses the connection, the job's head may serve at another address. A process that has
// accepted the connection knows the token, so its refusal of the request is final.
void Joiner::attempt_failed(const Status& why) {
  // The call ended at the join's deadline; the connection has not failed.
  if (why.code() == Code::kTimeout && loop_.now() >= options_.deadline) return out_of_time();
  loop_.cancel(progress_timer_);
  const bool accepted = channel_ != nullptr;
  drop_channel();
  end_attempt();
  errors_[head_] = why;
  if (accepted && why.code() == Code::kUnreachable) not_yet_ = why;
  if (is_final(why) && accepted)
    return end(why.code() == Code::kExists && why.parameter() == "rank" ? with_rank_hint(why) : why);
  if (all_refuse()) return end(error_of_all(heads_, errors_, why));
  if (progress_.empty())
    report(WorkerReport::Kind::kDialing, why.message());
  else
    report(WorkerReport::Kind::kWaiting,
           "the head at " + options_.head + " has gone (" + why.message() + "); before that: " + progress_);
  if (loop_.now() >= options_.deadline) return out_of_time();
  if (why.code() == Code::kUnreachable && loop_.now() >= options_.try_hosting_at) return end(why);
  log_.debug("the head at " + options_.head + " cannot be joined yet: " + why.message());
  Duration wait{};
  head_ = (head_ + 1) % heads_.size();
  if (head_ == 0) {  // each has been dialled
    wait = with_jitter(loop_, delay_);
    delay_ = std::min(2 * delay_, kLongestDelay);
  }
  retry_timer_ = loop_.schedule(loop_.now() + wait, guard([](Joiner& self) { self.dial(); }));
}

void Joiner::out_of_time() {
  const std::string within = " within " + options_.limit;
  const std::string remedy = "; start the missing workers, or raise `init_timeout`";
  if (storing_ && channel_) {
    return end(Status(Code::kTimeout,
                      "the head at " + options_.head + " has not admitted this worker" + within + ": " +
                          kStoring + "; check the disk or etcd of `head_state`, or raise `init_timeout`"));
  }
  if (!progress_.empty() && channel_) {
    return end(Status(Code::kTimeout, "the job at the head at " + options_.head + " was not complete" +
                                          within + ": " + progress_ + remedy)
                   .with_rank(missing_));
  }
  if (!progress_.empty()) {  // an embedded head ends with its worker, whose deadline may be earlier
    return end(Status(Code::kUnreachable, "the head at " + options_.head + " has gone (" + last_error() +
                                              ") and the job was not complete" + within +
                                              ": when the head was last heard, " + progress_ + remedy));
  }
  if (!not_yet_.ok()) {
    const bool is_last = std::any_of(errors_.begin(), errors_.end(), [this](const Status& error) {
      return error.message() == not_yet_.message();
    });
    return end(Status(Code::kUnreachable, "the head at " + options_.head + " took no further worker" +
                                              within + ": " + not_yet_.message() +
                                              (is_last ? "" : "; since then: " + last_error())));
  }
  end(Status(Code::kUnreachable,
             "worker " + describe_candidate(options_.join.member) + " could not reach the head at " +
                 options_.head + within + ": " +
                 (last_error().empty() ? "it does not answer" : last_error()) +
                 "; check that the head runs, that `head` is its address, and that no firewall blocks it"));
}

void Joiner::on_answer(Message message) {
  auto* reply = std::get_if<JoinReply>(&message);
  if (!reply || !is_valid_reply(*reply, options_.join)) {
    return end(Status(Code::kMismatch,
                      "the head at " + options_.head + " sent an invalid reply to the join of worker '" +
                          options_.join.member.worker_id + "'; another program may listen there"));
  }
  end(Joined{std::exchange(channel_, nullptr), std::move(*reply), head_});
}

void Joiner::end(Result<Joined> result) {
  stop();
  std::exchange(done_, nullptr)(std::move(result));
}

void Joiner::stop() {
  end_attempt();
  loop_.cancel(deadline_timer_);
  loop_.cancel(retry_timer_);
  loop_.cancel(warning_timer_);
  loop_.cancel(progress_timer_);
  drop_channel();
}

std::shared_ptr<transport::ClientChannel> Joiner::give_up_channel() {
  auto channel = std::exchange(channel_, nullptr);
  stop();
  return channel;
}

// The channel may be calling us at this moment.
void Joiner::drop_channel() {
  if (channel_) close_in_callback(loop_, std::exchange(channel_, nullptr));
}

}  // namespace dsgd

#include "core/membership/heartbeat.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "core/base/channels.h"
#include "core/base/describe.h"
#include "core/base/retry.h"
#include "core/base/stopped.h"
#include "core/base/while_alive.h"
#include "core/membership/leases.h"
#include "core/membership/probe.h"
#include "core/membership/text.h"

namespace dsgd {
namespace {

using transport::Duration;
using transport::Time;

// The shortest interval; guards against a configuration of 0.
constexpr Duration kShortest = std::chrono::milliseconds(1);

constexpr int kMostConnections = 8;  // to the head, opened one after the other while none is answered

HeartbeatOptions with_limits(HeartbeatOptions options) {
  options.lease = std::max(options.lease, 4 * kShortest);
  options.interval = std::clamp(options.interval, kShortest, options.lease / 2);
  return options;
}

}  // namespace

Heartbeat::Heartbeat(transport::Network& network, HeartbeatOptions options, HeartbeatEvents events)
    : network_(network), options_(with_limits(std::move(options))), events_(std::move(events)) {}

void Heartbeat::start() {
  loop().post([self = shared_from_this()] {
    if (self->is_over()) return;
    self->lease_start_ = self->loop().now();
    self->dial_heads();
    self->arm();
  });
}

void Heartbeat::begin_lease() {
  loop().post([self = shared_from_this()] {
    if (self->is_over()) return;
    self->lease_start_ = self->loop().now();
    self->forget_silence();
    self->arm();
  });
}

void Heartbeat::leave(const transport::Leave& message, std::function<void()> left) {
  loop().post([self = shared_from_this(), message, left = std::move(left)] {
    if (self->is_over()) return;
    self->leave_ = message;
    self->left_ = left;
    if (!self->channels_.empty()) self->send_leave();
  });
}

void Heartbeat::send_leave() {
  channels_.rbegin()->second->call(
      leave_, (head_may_return() ? loop().now() : lease_start_) + options_.lease,
      while_alive(weak_from_this(), [](Heartbeat& self, const Result<transport::Message>& answer) {
        if (!answer.ok()) return;
        if (auto left = std::exchange(self.left_, nullptr)) left();
      }));
}

void Heartbeat::check_stop(std::function<void(const Status&)> done) {
  loop().post([self = shared_from_this(), done = std::move(done)] {
    done(self->was_stopped_past_lease() ? self->stopped_error() : Status());
  });
}

void Heartbeat::stop(std::function<void()> stopped) {
  loop().post([self = shared_from_this(), stopped = std::move(stopped)] {
    self->state_ = State::kOver;
    self->events_ = {};
    self->left_ = nullptr;
    self->loop().cancel(self->timer_);
    for (const auto& [number, channel] : self->channels_) channel->close(true);
    self->channels_.clear();
    if (stopped) stopped();
  });
}

// Half of the interval: a cut that begins just before a renewal arrives leaves the other half to reconnect.
Duration Heartbeat::renewal_period() const { return options_.interval / 2; }

// After this time without an answer to a renewal the heartbeat opens another connection.
Duration Heartbeat::answer_limit() const { return options_.interval / 2; }

// Short enough that an attempt soon follows the end of a cut.
Duration Heartbeat::retry_period() const { return std::max(options_.interval / 8, options_.lease / 80); }

// After the first dial, also dials one of the other heads: if one of them serves now, it gives each worker
// only one lease to connect.
void Heartbeat::dial_heads() {
  next_dial_ = loop().now() + retry_period();
  const size_t others = options_.addresses.size() - 1;
  const bool first = dials_ == 0;
  dial_head(head_);
  if (others > 0 && !first) dial_head((head_ + 1 + other_dials_++ % others) % options_.addresses.size());
}

void Heartbeat::dial_head(size_t head) {
  const uint64_t number = ++dials_;
  transport::DialOptions dial;
  dial.hello = options_.hello;
  dial.token = options_.token;
  dial.deadline = loop().now() + kMostConnections * retry_period();
  if (!head_may_return()) dial.deadline = std::min(dial.deadline, lease_start_ + options_.lease);
  dial.closed = while_alive(weak_from_this(),
                            [number](Heartbeat& self, const Status& why) { self.on_closed(number, why); });
  network_.dial(options_.addresses[head], std::move(dial),
                while_alive(weak_from_this(), [number, head](Heartbeat& self, auto result) {
                  self.on_dialled(number, head, std::move(result));
                }));
}

void Heartbeat::on_dialled(uint64_t number, size_t head,
                           Result<std::unique_ptr<transport::ClientChannel>> result) {
  if (is_over()) return;
  if (result.ok()) {
    std::shared_ptr<transport::ClientChannel> channel = std::move(result).value();
    if (channels_.empty() || number > channels_.rbegin()->first) {
      channels_.emplace(number, std::move(channel));
      heads_[number] = head;
      renew();
      if (left_) send_leave();
      next_dial_ = std::max(next_dial_, sent_ + answer_limit());
    } else {
      close_in_callback(loop(), std::move(channel));
    }
  } else if (!head_may_return() && is_final(result.status())) {  // else a head may still come to this address
    return fail(head_error("refuses heartbeats: " + result.status().message()));
  } else if (head == head_) {
    last_error_ = result.status().message();
  }
  arm();
}

// If the newest connection closes, the head is lost. An older one may close because of a cut; it is ignored.
void Heartbeat::on_closed(uint64_t number, const Status& why) {
  if (is_over() || channels_.empty()) return;
  if (number == channels_.rbegin()->first) {
    if (head_may_return()) {
      close_in_callback(loop(), std::move(channels_.extract(number).mapped()));
      if (channels_.empty()) next_renewal_ = transport::kNever;
      next_dial_ = std::min(next_dial_, loop().now() + retry_period());
    }
    return fail_as_lost_head(why.ok() ? "was lost: it has closed the heartbeat connection"
                                      : "was lost: the heartbeat connection broke (" + why.message() + ")",
                             code_of_break(why));
  }
  if (auto node = channels_.extract(number)) close_in_callback(loop(), std::move(node.mapped()));
}

void Heartbeat::renew() {
  const uint64_t number = channels_.rbegin()->first;
  sent_ = loop().now();
  next_renewal_ = sent_ + renewal_period();
  if (next_dial_ == transport::kNever) next_dial_ = sent_ + answer_limit();
  transport::Renew message;
  message.number = options_.hello.rank;
  message.view = options_.hello.view;
  channels_.rbegin()->second->call(
      message, sent_ + options_.lease,
      while_alive(weak_from_this(),
                  [number, sent = sent_](Heartbeat& self, const Result<transport::Message>& answer) {
                    self.on_renewed(number, sent, answer);
                  }));
}

void Heartbeat::on_renewed(uint64_t number, Time sent, const Result<transport::Message>& answer) {
  if (is_over()) return;
  if (answer.ok()) {
    lease_start_ = std::max(lease_start_, sent);
    // If an older renewal was answered, the newest one may still take answer_limit().
    next_dial_ =
        sent == sent_ ? transport::kNever : std::max(next_dial_, sent + renewal_period() + answer_limit());
    forget_silence();
    const auto* const reply = std::get_if<transport::RenewReply>(&answer.value());
    if (reply && reply->storing) stored_at_ = loop().now();
    if (number < answered_) return arm();  // a late answer, on a connection that is being closed
    const bool another = number > answered_;
    answered_ = number;
    while (channels_.begin()->first < number)
      close_in_callback(loop(), std::move(channels_.extract(channels_.begin()).mapped()));
    head_ = heads_[number];
    heads_.erase(heads_.begin(), heads_.find(number));
    // Perhaps another head has answered, and the control connection still leads to the one before.
    if (another && head_may_return()) events_.head_answered();
    arm();
    return;
  }
  // A status with a rank comes from the head, not from the transport: the head has declared this worker lost.
  if (answer.status().rank() >= 0 || answer.status().code() == Code::kEvicted) return fail(answer.status());
  const bool newest = !channels_.empty() && number == channels_.rbegin()->first;
  if (answer.status().code() == Code::kTimeout || !newest) {
    last_error_ = answer.status().message();
  } else if (!head_may_return()) {
    fail_as_lost_head("does not take this worker's heartbeat: " + answer.status().message(),
                      code_of_break(answer.status()));
  } else if (!is_lost_connection(answer.status())) {  // its end is reported by on_closed()
    fail(head_error("does not take this worker's heartbeat: " + answer.status().message()));
  }
}

void Heartbeat::arm() {
  Time when = std::min(next_renewal_, next_dial_);
  if (state_ == State::kHeadLost) {
    when = std::max(when, loop().now());
  } else if (state_ == State::kDraining) {
    when = loop().now() + drain_time(options_.lease);
  } else {
    when = std::min(when, lease_start_ + (peers_asked_ ? options_.lease : options_.lease / 2));
  }
  loop().cancel(timer_);
  due_ = when;
  timer_ = loop().schedule(when, while_alive(weak_from_this(), [](Heartbeat& self) { self.tick(); }));
}

void Heartbeat::tick() {
  timer_ = 0;
  if (is_over()) return;
  const Time now = loop().now();
  note_stall();
  if (state_ == State::kDraining) return expire();
  if (state_ == State::kRenewing && now - lease_start_ >= options_.lease) {
    state_ = State::kDraining;
    return arm();
  }
  if (state_ == State::kRenewing && !peers_asked_ && now - lease_start_ >= options_.lease / 2) ask_peers();
  if (now >= next_renewal_) renew();
  if (now >= next_dial_) {
    next_dial_ = now + retry_period();
    if (channels_.size() < kMostConnections) dial_heads();
  }
  arm();
}

void Heartbeat::ask_peers() {
  peers_asked_ = true;
  for (const auto& addresses : options_.peers) {
    probe(network_, options_.hello, options_.token, addresses, lease_start_ + options_.lease,
          while_alive(weak_from_this(), [](Heartbeat& self, const Status& status) {
            self.peer_answered_ |= status.ok() && self.peers_asked_;  // else the head has answered meanwhile
          }));
  }
}

void Heartbeat::forget_silence() {
  state_ = State::kRenewing;
  peers_asked_ = peer_answered_ = asks_after_stop_ = false;
  stalled_ = {};
}

// The head decides whether this worker is lost: the head may have been stopped as well.
void Heartbeat::ask_after_stop() {
  asks_after_stop_ = true;
  state_ = State::kRenewing;
  peers_asked_ = peer_answered_ = false;
  lease_start_ = loop().now();
  if (!channels_.empty()) renew();
  arm();
}

void Heartbeat::expire() {
  if (was_stopped_past_lease()) return asks_after_stop_ ? lose_head(stopped_error()) : ask_after_stop();
  const Duration silence = loop().now() - lease_start_;
  if (!options_.peers.empty() && !peer_answered_) {
    return lose_head(
        Status(Code::kWorkerLost, options_.own_name + " is cut off: neither " + options_.head_name +
                                      " nor any other worker on another machine has answered for " +
                                      describe_duration(silence) + " (lease)" + last_error_note())
            .with_rank(options_.own_rank, options_.own_host));
  }
  fail_as_lost_head("has not answered for " + describe_duration(silence) +
                    " (lease); it is stopped or suspended, or the network or a firewall cuts it off" +
                    last_error_note());
}

void Heartbeat::note_stall() {
  const Time now = loop().now();
  if (was_stopped(due_, now, options_.lease)) stalled_ = now - due_;
}

// Whether this process was stopped until its lease was over, and the head has not answered since.
bool Heartbeat::was_stopped_past_lease() {
  note_stall();  // a connection's end may be read before the timer runs
  return asks_after_stop_ || (stalled_ > Duration{} && loop().now() - lease_start_ >= options_.lease);
}

std::string Heartbeat::last_error_note() const {
  return last_error_.empty() ? "" : "; last error: " + last_error_;
}

Status Heartbeat::stopped_error() {
  return Status(Code::kWorkerLost, options_.own_name + " was itself stopped or suspended for " +
                                       describe_duration(stalled_) +
                                       ", and its lease has ended; the head may have declared it lost")
      .with_rank(options_.own_rank, options_.own_host);
}

// Reports the loss of the head, or of this process if that was stopped.
void Heartbeat::fail_as_lost_head(const std::string& how, Code code) {
  lose_head(was_stopped_past_lease() ? stopped_error() : head_error(how, code));
}

Status Heartbeat::head_error(const std::string& how, Code code) const {
  return Status(code, options_.head_name + " " + how).with_rank(options_.head_rank, options_.head_host);
}

void Heartbeat::lose_head(const Status& why) {
  if (is_over()) return;
  if (!head_may_return() || why.code() == Code::kCorrupted) return fail(why);
  if (std::exchange(state_, State::kHeadLost) != State::kHeadLost) events_.head_lost(why);
  arm();
}

void Heartbeat::fail(Status why) {
  if (is_over()) return;
  state_ = State::kOver;
  loop().cancel(timer_);
  // The channel stays until stop: this may be called from within it.
  if (const auto failed = std::exchange(events_, {}).failed) failed(why);
}

}  // namespace dsgd

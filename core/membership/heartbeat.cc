#include "core/membership/heartbeat.h"

#include <algorithm>

#include "core/membership/retry.h"
#include "core/membership/text.h"

namespace dsgd {
namespace {

using transport::Duration;
using transport::Time;

constexpr Duration kShortest = std::chrono::milliseconds(1);  // of an interval; guards against a configuration of 0
constexpr Duration kLongestDrain = std::chrono::milliseconds(10);  // enough to read what has arrived; part of "lease + 100 ms"

HeartbeatOptions sane(HeartbeatOptions options) {
  options.lease = std::max(options.lease, 4 * kShortest);
  options.interval = std::clamp(options.interval, kShortest, options.lease / 2);
  return options;
}

}  // namespace

Heartbeat::Heartbeat(transport::Network& network, HeartbeatOptions options,
                     std::function<void(const Status&)> failed)
    : network_(network), options_(sane(std::move(options))), failed_(std::move(failed)) {}

void Heartbeat::start() {
  loop().post([self = shared_from_this()] {
    if (self->over_) return;
    self->lease_start_ = self->next_ = self->loop().now();
    self->dial();
    self->arm();
  });
}

void Heartbeat::stop(std::function<void()> stopped) {
  loop().post([self = shared_from_this(), stopped = std::move(stopped)] {
    self->over_ = true;
    self->failed_ = nullptr;
    self->loop().cancel(self->timer_);
    if (self->channel_) self->channel_->close(true);
    self->channel_.reset();
    if (stopped) stopped();
  });
}

void Heartbeat::dial() {
  dialling_ = true;
  transport::DialOptions dial;
  dial.hello = options_.hello;
  dial.token = options_.token;
  dial.deadline = lease_start_ + options_.lease;
  dial.closed = [weak = weak_from_this()](const Status& why) {
    if (auto self = weak.lock()) {
      self->lose(why.ok() ? "was lost: it has closed the heartbeat connection"
                          : "was lost: the heartbeat connection broke (" + why.message() + ")",
              code_of_break(why));
    }
  };
  network_.dial(options_.address, std::move(dial), [weak = weak_from_this()](auto result) {
    if (auto self = weak.lock()) self->on_dialled(std::move(result));
  });
}

void Heartbeat::on_dialled(Result<std::unique_ptr<transport::ClientChannel>> result) {
  if (over_) return;
  dialling_ = false;
  if (result.ok()) {
    channel_ = std::move(result).value();
    next_ = loop().now();
    renew();
  } else if (is_final(result.status())) {
    return lose("refuses heartbeats: " + result.status().message());
  } else {
    last_error_ = result.status().message();
    next_ = loop().now() + options_.interval / 2;
  }
  arm();
}

void Heartbeat::renew() {
  const Time sent = loop().now();
  next_ = sent + options_.interval;
  transport::Renew message;
  message.rank = options_.hello.rank;
  message.epoch = options_.hello.epoch;
  channel_->call(message, sent + options_.lease,
                 [weak = weak_from_this(), sent](Result<transport::Message> answer) {
                   if (auto self = weak.lock()) self->on_renewed(sent, answer);
                 });
}

void Heartbeat::on_renewed(Time sent, const Result<transport::Message>& answer) {
  if (over_) return;
  if (answer.ok()) {
    lease_start_ = std::max(lease_start_, sent);
    drained_ = false;
    stalled_ = {};
    arm();
  } else if (answer.status().rank() >= 0) {
    fail(answer.status());  // the head's own words: this worker was declared lost
  } else if (answer.status().code() == Code::kTimeout) {
    last_error_ = answer.status().message();
  } else {
    lose("does not take this worker's heartbeat: " + answer.status().message(), code_of_break(answer.status()));
  }
}

void Heartbeat::arm() {
  Time when = lease_start_ + options_.lease;
  if (drained_) {
    when = loop().now() + std::min(kLongestDrain, options_.lease / 20);
  } else if (!dialling_) {
    when = std::min(when, next_);
  }
  loop().cancel(timer_);
  due_ = when;
  timer_ = loop().schedule(when, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->tick();
  });
}

void Heartbeat::tick() {
  timer_ = 0;
  if (over_) return;
  const Time now = loop().now();
  if (now - due_ > options_.lease / 2) stalled_ = now - due_;
  if (now - lease_start_ >= options_.lease) {
    if (drained_) return expire();
    drained_ = true;
    return arm();
  }
  if (!dialling_ && now >= next_) {
    if (channel_) {
      renew();
    } else {
      dial();
    }
  }
  arm();
}

void Heartbeat::expire() {
  const Duration silence = loop().now() - lease_start_;
  if (stalled_ > Duration{}) {
    return fail(
        Status(Code::kWorkerLost, options_.own_name + " was itself stopped or suspended for " +
                                      describe_duration(stalled_) + " and has not renewed its lease for " +
                                      describe_duration(silence) + "; the others no longer count on it")
            .with_rank(options_.hello.rank, options_.own_host));
  }
  lose("has not answered for " + describe_duration(silence) +
       " (lease); it is stopped, suspended or cut off" +
       (last_error_.empty() ? "" : "; last error: " + last_error_));
}

void Heartbeat::lose(const std::string& how, Code code) {
  fail(Status(code, options_.head_name + " " + how)
           .with_rank(options_.head_rank, options_.head_host));
}

void Heartbeat::fail(Status why) {
  if (over_) return;
  over_ = true;
  loop().cancel(timer_);
  if (auto failed = std::move(failed_))
    failed(why);  // the channel stays until stop: this may be called from within it
}

}  // namespace dsgd

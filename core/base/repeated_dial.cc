#include "core/base/repeated_dial.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/channels.h"
#include "core/base/retry.h"

namespace dsgd {

using transport::ClientChannel;
using transport::Duration;
using transport::Time;

namespace {

constexpr int kLiveAttempts = 4;  // besides the first

// Reports the end of a connection if it is the one that is used. The peer may close the others, too.
struct End {
  std::function<void(const Status&)> report;
  bool used = false;
  std::optional<Status> early = {};  // it ended before it was used

  void ended(const Status& why) {
    if (!used) {
      early = why;
    } else if (report) {
      report(why);
    }
  }
};

}  // namespace

RepeatedDial::RepeatedDial(transport::Network& network, std::vector<std::string> addresses,
                           transport::DialOptions options, Done done, Refusal refusal)
    : network_(network),
      addresses_(std::move(addresses)),
      options_(std::move(options)),
      deadline_(options_.deadline),
      period_(
          std::max<Duration>((deadline_ - network.loop().now()) / kAttempts, std::chrono::milliseconds(1))),
      done_(std::move(done)),
      refusal_(refusal),
      last_(Code::kUnreachable,
            addresses_.empty() ? "it has given no address" : "it has not answered in time") {}

std::shared_ptr<RepeatedDial> RepeatedDial::start(transport::Network& network,
                                                  std::vector<std::string> addresses,
                                                  transport::DialOptions options, Done done,
                                                  Refusal refusal) {
  std::shared_ptr<RepeatedDial> dial(
      new RepeatedDial(network, std::move(addresses), std::move(options), std::move(done), refusal));
  if (dial->addresses_.empty() || network.loop().now() >= dial->deadline_) {
    network.loop().post([dial] { dial->end(dial->last_); });
  } else {
    dial->due_ = network.loop().now();
    dial->attempt();
  }
  return dial;
}

void RepeatedDial::attempt() {
  if (!done_) return;
  const Time now = network_.loop().now();
  // If this process was stopped, the peer may have been stopped with it.
  if (now - due_ > kLiveAttempts * period_) deadline_ += now - due_;
  if (now >= deadline_) return end(last_);
  // The first attempt has all the time, for a network that is only slow.
  try_address(0, first_ ? deadline_ : std::min(deadline_, now + kLiveAttempts * period_));
  first_ = false;
  due_ = std::min(deadline_, now + period_);
  network_.loop().schedule(due_, [self = shared_from_this()] { self->attempt(); });
}

void RepeatedDial::try_address(size_t index, Time until) {
  if (index == addresses_.size() || !done_) return;
  transport::DialOptions options = options_;
  options.deadline = until;
  const auto end = std::make_shared<End>(End{options_.closed});
  options.closed = [end](const Status& why) { end->ended(why); };
  network_.dial(
      addresses_[index], std::move(options),
      [self = shared_from_this(), index, until, end](Result<std::unique_ptr<ClientChannel>> result) {
        if (!result.ok() && (self->refusal_ == Refusal::kRepeated || !is_final(result.status()))) {
          self->last_ = result.status();
          return self->try_address(index + 1, until);
        }
        end->used = result.ok() && self->done_;
        self->end(std::move(result));
        if (end->used && end->early && end->report) end->report(*end->early);
      });
}

void RepeatedDial::end(Result<std::unique_ptr<ClientChannel>> result) {
  if (Done done = std::exchange(done_, nullptr)) return done(std::move(result));
  if (result.ok()) close_in_callback(network_.loop(), std::move(result).value());
}

}  // namespace dsgd

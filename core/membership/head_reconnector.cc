#include "core/membership/head_reconnector.h"

#include <algorithm>
#include <utility>

#include "core/base/channels.h"
#include "core/base/retry.h"
#include "core/membership/text.h"

namespace dsgd {
namespace {

using transport::Duration;

// The delay before the second attempt, and the longest one. The latter is also at most an eighth of a lease:
// a head that has just started gives its workers one lease to come back.
constexpr Duration kFirstReturnDelay = std::chrono::milliseconds(10);
constexpr Duration kLongestReturnDelay = std::chrono::milliseconds(500);

}  // namespace

HeadReconnector::HeadReconnector(transport::Network& network, Options options,
                                 std::function<void(Result<Channel>)> done)
    : network_(network),
      options_(std::move(options)),
      done_(std::move(done)),
      delay_(kFirstReturnDelay),
      errors_(options_.addresses.size()) {}

void HeadReconnector::start() { dial(); }

void HeadReconnector::dial() {
  end_attempt();
  transport::DialOptions dial;
  dial.hello = options_.hello;
  dial.token = options_.token;
  dial.deadline = std::min(options_.deadline, network_.loop().now() + options_.lease);
  cancel_dials();
  failed_ = 0;
  for (size_t head = 0; head < options_.addresses.size(); ++head) {
    dials_.push_back(RepeatedDial::start(
        network_, {options_.addresses[head]}, dial,
        guard([head](HeadReconnector& self, auto result) { self.on_dialled(head, std::move(result)); }),
        RepeatedDial::Refusal::kRepeated));
  }
}

// All addresses are dialled at once: heads that stand by refuse, and a lost machine does not answer.
void HeadReconnector::on_dialled(size_t head, Result<std::unique_ptr<transport::ClientChannel>> result) {
  if (!result.ok()) {
    note_error(head, result.status());
    if (++failed_ == dials_.size()) try_again();
    return;
  }
  cancel_dials();
  channel_ = std::move(result).value();
  ask(head);
}

void HeadReconnector::cancel_dials() {
  for (const auto& dial : std::exchange(dials_, {})) dial->cancel();
}

// This head has accepted the job's nonce, so its answer about this worker is final.
void HeadReconnector::ask(size_t head) {
  channel_->call(options_.request, std::min(options_.deadline, network_.loop().now() + options_.lease),
                 guard([head](HeadReconnector& self, const Result<transport::Message>& answer) {
                   if (answer.ok()) return self.end(std::exchange(self.channel_, nullptr));
                   if (!is_lost_connection(answer.status())) return self.end(answer.status());
                   self.note_error(head, answer.status());
                   self.try_again();
                 }));
}

void HeadReconnector::note_error(size_t head, const Status& why) {
  const bool refused = !errors_[head].ok() && is_final(errors_[head]);
  if (!refused || is_final(why)) errors_[head] = why;
}

void HeadReconnector::try_again() {
  drop_channel();
  end_attempt();
  const transport::Time now = network_.loop().now();
  if (now >= options_.deadline)
    return end(Status(Code::kUnreachable, describe_errors(options_.addresses, errors_)));
  const Duration wait = with_jitter(network_.loop(), delay_);
  delay_ = std::min({2 * delay_, kLongestReturnDelay, std::max(options_.lease / 8, kFirstReturnDelay)});
  timer_ = network_.loop().schedule(std::min(now + wait, options_.deadline),
                                    guard([](HeadReconnector& self) { self.dial(); }));
}

void HeadReconnector::end(Result<Channel> result) {
  const auto done = std::exchange(done_, nullptr);
  stop();
  done(std::move(result));
}

void HeadReconnector::stop() {
  done_ = nullptr;
  end_attempt();
  network_.loop().cancel(timer_);
  cancel_dials();
  drop_channel();
}

// The channel may be calling us at this moment.
void HeadReconnector::drop_channel() {
  if (channel_) close_in_callback(network_.loop(), std::exchange(channel_, nullptr));
}

}  // namespace dsgd

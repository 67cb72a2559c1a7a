#include "transport/uv/connection.h"

#include <utility>

namespace dsgd::transport::uv {

namespace {

// A closing connection writes its queue first. It gives up when the peer takes nothing for kStall, and after
// kFlushLimit in any case: dsgd_close promises at most a second for this, whatever the lease.
constexpr Duration kStall = std::chrono::milliseconds(500);
constexpr Duration kFlushLimit = std::chrono::seconds(1);
// RPC releases each message that it has handled long before this. No wait of a caller depends on it.
constexpr Duration kStarving = std::chrono::milliseconds(500);

}  // namespace

void Connection::release(bool flush) {
  mute();
  close_link(flush);
}

void Connection::kill() {
  auto self = shared_from_this();
  mute();
  cancel_timers();
  state_ = State::kEnded;
  finish();
}

// The network releases the connection, even if dropping RPC throws.
void Connection::finish() {
  KJ_DEFER(if (auto ended = std::exchange(on_ended, nullptr)) ended(this));
  if (link_) link_->stop();
  tear_down();
}

void Connection::close_link(bool flush) {
  if (state_ == State::kEnded) return;
  if (!flush) return end(Status());
  if (state_ != State::kOpen) return;
  give_up_ = loop().now() + kFlushLimit;
  queued_before_ = link_->writer().queued_bytes();
  if (!timer_) timer_ = loop().schedule(loop().now() + kStall, [this] { watch(); });
  // An answer just given is still on its way through KJ's queue, which has run when the next task does.
  loop().post([self = shared_from_this()] {
    self->answers_queued_ = true;
    if (self->link_ && !self->ended()) self->link_->push_out();
    self->advance();
  });
  state_ = State::kFlushing;
}

void Connection::watch() {
  timer_ = loop().schedule(loop().now() + kStall, [this] { watch(); });
  const size_t queued = link_->writer().queued_bytes();
  if (loop().now() >= give_up_ || queued == queued_before_) return end(Status());
  queued_before_ = queued;
}

void Connection::advance() {
  if (state_ == State::kFlushing && answers_queued_ && nothing_to_send() && link_->writer().empty()) {
    state_ = State::kDraining;
    link_->send_goodbye();
  }
  if (state_ == State::kDraining && link_->writer().empty() && !writing_ended_) {
    writing_ended_ = true;
    link_->end_writing();
  }
}

void Connection::link_written() { advance(); }

// RPC keeps a message as long as the peer may still use its results. If such messages fill the receive
// memory, the peer's message that releases them cannot be read either, and the connection cannot recover.
// The connection ends if two looks in a row find no message in use on this side, and nothing has moved
// between them. One look is not enough: a message may be on its way through KJ's queue.
void Connection::link_starved() {
  stuck_at_.reset();  // a call while the timer runs: memory was freed meanwhile, and others have taken it
  if (state_ == State::kEnded || starving_) return;
  starving_ = loop().schedule(loop().now() + kStarving, [this] { check_starved(); });
}

void Connection::check_starved() {
  starving_ = 0;
  if (!link_ || !link_->starved()) return;
  std::optional<uint64_t> stuck_at;
  if (!holds_messages()) stuck_at = link_->received();
  if (!stuck_at || stuck_at != stuck_at_) {
    stuck_at_ = stuck_at;
    starving_ = loop().schedule(loop().now() + kStarving, [this] { check_starved(); });
    return;
  }
  end(Status(Code::kIo,
             "the connection broke the RPC protocol: the receive memory is full, and the peer does not "
             "release earlier messages; do both sides run the same version of dsgd?"));
}

void Connection::cancel_timers() {
  for (TimerId* timer : {&timer_, &starving_}) {
    if (*timer) loop().cancel(std::exchange(*timer, 0));
  }
}

void Connection::link_down(const Status& why) { end(why); }

void Connection::end(const Status& why) {
  if (state_ == State::kEnded) return;
  const bool tell = state_ == State::kOpen;
  // As a task of its own: this may be the link's or KJ's call stack, and answers that came before the end are
  // still on their way through KJ's queue.
  loop().post([self = shared_from_this(), why, tell] {
    if (tell) self->guarded([&] { self->broken(why); });
    self->finish();
  });
  state_ = State::kEnded;
  link_->drop_queue();
  cancel_timers();
}

}  // namespace dsgd::transport::uv

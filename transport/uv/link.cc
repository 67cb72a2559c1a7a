#include "transport/uv/link.h"

#include <capnp/message.h>
#include <capnp/rpc.capnp.h>
#include <kj/refcount.h>
#include <sys/socket.h>

#include "transport/schema/codec_capnp.h"
#include "transport/uv/guard.h"
#include "transport/uv/zero_region.h"

namespace dsgd::transport::uv {

namespace {

// The reason in the Abort message by which an orderly end is told from a process that died.
constexpr char kGoodbye[] = "dsgd: closed in good order";
// And by which the side that sent a corrupted frame learns of it.
constexpr char kCorrupted[] = "dsgd: corrupted frame";
constexpr std::byte kPadding[8] = {};
constexpr size_t kHeldBytes = 64 << 10;    // queued messages that may wait to be batched
constexpr size_t kHeldCredit = 256 << 10;  // a quarter of the window that core gives small chunks

}  // namespace

// ---- messages

class Link::Outgoing final : public capnp::OutgoingRpcMessage, public kj::Refcounted {
 public:
  Outgoing(Link& link, unsigned first_segment_words)
      : link_(link),
        message_(first_segment_words == 0 ? capnp::SUGGESTED_FIRST_SEGMENT_WORDS : first_segment_words) {}

  capnp::AnyPointer::Builder getBody() override { return message_.getRoot<capnp::AnyPointer>(); }
  void send() override {
    link_.port_.noted([&] { link_.send(*this); });
  }
  size_t sizeInWords() override { return message_.sizeInWords(); }

  kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments() { return message_.getSegmentsForOutput(); }
  capnp::rpc::Message::Reader message() { return message_.getRoot<capnp::rpc::Message>().asReader(); }

 private:
  Link& link_;
  capnp::MallocMessageBuilder message_;
};

namespace {

class Incoming final : public capnp::IncomingRpcMessage {
 public:
  explicit Incoming(kj::Own<Frame> frame) : frame_(kj::mv(frame)) {}
  capnp::AnyPointer::Reader getBody() override { return frame_->getRoot<capnp::AnyPointer>(); }
  size_t sizeInWords() override { return frame_->words(); }

 private:
  kj::Own<Frame> frame_;
};

size_t nbytes_of(const Frame& frame) { return frame.words() * sizeof(capnp::word); }

bool is_small_chunk(const Frame& frame, capnp::rpc::Message::Reader message) {
  if (!message.isCall() || frame.segment_count() != 1) return false;
  const auto call = message.getCall();
  return call.getInterfaceId() == capnp::typeId<schema::Wire>() && call.getMethodId() == kPushMethod &&
         nbytes_of(frame) <= kSmallBytes + kHeldBytes;
}

// Returns why the link goes down; OK: a goodbye.
Status reason_of_abort(capnp::rpc::Exception::Reader abort) {
  const auto reason = abort.getReason();
  if (reason == kGoodbye) return {};
  if (reason == kCorrupted)
    return {Code::kCorrupted, "the peer received a frame that failed its CRC32C check"};
  return {Code::kWorkerLost, "the peer broke the connection off: " + std::string(reason.cStr())};
}

}  // namespace

class Link::RpcConnection final : public TwoPartyNetwork::Connection {
 public:
  explicit RpcConnection(Link& link) : link_(link), peer_(4) {
    peer_.initRoot<capnp::rpc::twoparty::VatId>().setSide(link.side_ == capnp::rpc::twoparty::Side::CLIENT
                                                              ? capnp::rpc::twoparty::Side::SERVER
                                                              : capnp::rpc::twoparty::Side::CLIENT);
  }
  capnp::rpc::twoparty::VatId::Reader getPeerVatId() override {
    return peer_.getRoot<capnp::rpc::twoparty::VatId>();
  }
  kj::Own<capnp::OutgoingRpcMessage> newOutgoingMessage(unsigned first_segment_words) override {
    return link_.port_.noted([&] { return kj::refcounted<Outgoing>(link_, first_segment_words); });
  }
  kj::Promise<Received> receiveIncomingMessage() override {
    return link_.port_.noted([&] { return link_.receive(); });
  }
  kj::Promise<void> shutdown() override {
    link_.rpc_gave_up();
    return kj::READY_NOW;
  }

 private:
  Link& link_;
  capnp::MallocMessageBuilder peer_;
};

// RPC's wait for a message. Cancelling it only forgets it: no buffer belongs to it.
class Link::Receive {
 public:
  Receive(kj::PromiseFulfiller<Received>& fulfiller, Link& link) : fulfiller_(fulfiller), link_(link) {
    link_.waiting_ = this;
    if (!link_.down_ && !link_.starved_) link_.poll_->want_read(true);
  }
  ~Receive() {
    if (link_.waiting_ == this) link_.waiting_ = nullptr;
  }
  void fulfill(Received message) { fulfiller_.fulfill(kj::mv(message)); }

 private:
  kj::PromiseFulfiller<Received>& fulfiller_;
  Link& link_;
};

// ---- the link

Result<std::unique_ptr<Link>> Link::make(UvEventPort& port, Fd fd, std::shared_ptr<Tls> tls,
                                         capnp::rpc::twoparty::Side side, ReadShared& shared,
                                         std::atomic<uint64_t>& sent, Events* events,
                                         FrameReader::Landing* landing) {
  std::unique_ptr<Link> link(new Link(port, std::move(tls), side, shared, sent, events, landing));
  DSGD_RETURN_IF_ERROR(PollFd::make(port, std::move(fd), link.get()).into(&link->poll_));
  return link;
}

Link::Link(UvEventPort& port, std::shared_ptr<Tls> tls, capnp::rpc::twoparty::Side side, ReadShared& shared,
           std::atomic<uint64_t>& sent, Events* events, FrameReader::Landing* landing)
    : port_(port),
      shared_(shared),
      side_(side),
      sent_(sent),
      events_(events),
      tls_(std::move(tls)),
      reader_(shared, landing) {}

Link::~Link() { stop(); }

void Link::stop() {
  if (!poll_) return;
  down_ = true;
  if (flush_queued_ || held_) port_.forget(this);
  if (starved_) std::erase(shared_.memory_waiters, static_cast<MemoryWaiter*>(this));
  writer_.drop_all();
  poll_.reset();
}

void Link::down(const Status& why) {
  if (down_) return;
  events_->link_down(corrupted_.ok() ? why : corrupted_);  // first, since it may throw
  down_ = true;
  poll_->want_read(false);
  poll_->want_write(false);
}

kj::Maybe<kj::Own<TwoPartyNetwork::Connection>> Link::connect(capnp::rpc::twoparty::VatId::Reader vat) {
  if (vat.getSide() == side_) return nullptr;
  return kj::Own<TwoPartyNetwork::Connection>(kj::heap<RpcConnection>(*this));
}

kj::Promise<kj::Own<TwoPartyNetwork::Connection>> Link::accept() {
  if (side_ == capnp::rpc::twoparty::Side::CLIENT || accepted_) return kj::NEVER_DONE;
  accepted_ = true;
  return kj::Own<TwoPartyNetwork::Connection>(kj::heap<RpcConnection>(*this));
}

void Link::rpc_gave_up() {
  if (!said_goodbye_) {
    down(Status(Code::kIo,
                "the connection broke the RPC protocol; do both sides run the same version of dsgd?"));
  }
}

// ---- sending

void Link::send(Outgoing& message) {
  if (down_ || said_goodbye_) return;
  const auto segments = message.segments();
  KJ_REQUIRE(segments.size() <= FrameWriter::kMaxSegments, "message in too many segments", segments.size());
  FrameWriter::Frame frame;
  frame.message = kj::addRef(message);
  size_t table_words = 0;
  frame.table[table_words++] = static_cast<uint32_t>(segments.size() - 1);
  for (auto segment : segments) frame.table[table_words++] = static_cast<uint32_t>(segment.size());
  table_words += table_words % 2;
  auto add = [&frame](const void* data, size_t n) {
    frame.parts[frame.count++] = {const_cast<void*>(data), n};
    frame.bytes += n;
  };
  add(nullptr, table_words * sizeof(uint32_t));
  // Only the accepting side looks at the second segment by itself.
  if (side_ == capnp::rpc::twoparty::Side::CLIENT && segments.size() == 2 && segments[1].size() > 0)
    frame.payload_part = 2;
  for (auto segment : segments) {
    const size_t bytes = segment.size() * sizeof(capnp::word);
    if (!ZeroRegion::contains(segment.begin())) {
      add(segment.begin(), bytes);
      continue;
    }
    const Span span = events_->take_span(ZeroRegion::slot(segment.begin()));
    KJ_REQUIRE(span.id != 0 && frame.span == 0 && bytes >= span.data.size() &&
               bytes - span.data.size() < sizeof kPadding);
    frame.span = span.id;
    frame.span_part = frame.count;
    add(span.data.data(), span.data.size());
    if (bytes > span.data.size()) add(kPadding, bytes - span.data.size());
  }
  const bool later = can_wait(message);
  writer_.push(std::move(frame));
  if (later && writer_.queued_bytes() <= kHeldBytes) {
    if (!held_) port_.hold(this);
    held_ = true;
    return;
  }
  push_out();
}

// No caller waits for a Finish, nor for the credit of a small chunk while there is much of it left: they are
// batched with the next message, or go out together after a while. Each would cost a system call here and
// one, with a wake-up, at the peer.
bool Link::can_wait(Outgoing& message) {
  const auto content = message.message();
  if (content.isFinish()) return true;
  if (!content.isReturn()) return false;
  const auto answer = content.getReturn();
  auto small = small_questions_.extract(answer.getAnswerId());
  if (small.empty() || !answer.isResults()) return false;
  held_credit_ += small.mapped();
  return held_credit_ <= kHeldCredit &&
         answer.getResults().getContent().getAs<schema::Wire::PushResults>().getStatus().getCode() == 0;
}

void Link::push_out() {
  write_quietly();
  if (flush_queued_ || down_) return;
  port_.flush_later(this);
  flush_queued_ = true;
}

void Link::send_raw(std::vector<uint8_t> bytes) {
  FrameWriter::Frame frame;
  frame.raw = std::move(bytes);
  frame.parts[0] = {nullptr, frame.raw.size()};
  frame.count = 1;
  frame.bytes = frame.raw.size();
  writer_.push(std::move(frame));
  push_out();
}

void Link::send_goodbye() { send_abort(kGoodbye); }

void Link::send_abort(const char* reason) {
  if (said_goodbye_ || down_) return;
  auto message = kj::refcounted<Outgoing>(*this, 32);
  auto abort = message->getBody().initAs<capnp::rpc::Message>().initAbort();
  abort.setReason(reason);
  abort.setType(capnp::rpc::Exception::Type::DISCONNECTED);
  message->send();
  said_goodbye_ = true;
}

void Link::end_writing() {
  if (poll_) ::shutdown(poll_->fd(), SHUT_WR);
}

void Link::flush() {
  flush_queued_ = false;
  write();
}

void Link::flush_held() {
  held_ = false;
  if (!writer_.empty()) write();
}

void Link::on_writable() { write(); }

// RPC must not be entered again from inside its send(): it holds references into tables that a call would
// make grow. The owner answers link_written() with calls, so link_written() is called from the loop only.
void Link::write_quietly() {
  if (down_) return;
  const size_t before = writer_.queued_bytes();
  held_credit_ = 0;
  const Status status = writer_.write(stream(), &sent_);
  if (!status.ok()) return down(status);
  unreported_ = unreported_ || writer_.queued_bytes() < before;
  poll_->want_write(!writer_.empty());
}

void Link::write() {
  write_quietly();
  if (!down_ && std::exchange(unreported_, false)) events_->link_written();
}

// The rest of a half-written message must be sent, so revoke() copies the spans in it. When memory is short
// there is no copy: the socket is shut down, and the next read or write ends the connection.
void Link::revoke(const std::function<bool(uint64_t)>& chosen) {
  if (writer_.revoke(chosen)) return;
  port_.note_exhausted();
  writer_.drop_all();
  if (poll_) ::shutdown(poll_->fd(), SHUT_RDWR);
}

// ---- receiving

kj::Promise<Link::Received> Link::receive() {
  Received message;
  if (!down_ && !starved_ && try_receive(&message)) return kj::mv(message);
  // A link that is down keeps RPC waiting: its owner drops RPC as a whole.
  return kj::newAdaptedPromise<Received, Receive>(*this);
}

bool Link::try_receive(Received* out) {
  kj::Own<Frame> frame;
  Status error;
  switch (reader_.read(stream(), &frame, &error)) {
    case ReadOutcome::kDone:
      if (const std::optional<Status> why = inspect(*frame)) {
        down(*why);
        return false;
      }
      *out = kj::Own<capnp::IncomingRpcMessage>(kj::heap<Incoming>(kj::mv(frame)));
      ++received_;
      return true;
    case ReadOutcome::kBlocked:
      return false;
    case ReadOutcome::kStarved:
      // The socket stays unread, and so the peer is held back.
      poll_->want_read(false);
      if (std::exchange(starved_, true)) return false;
      shared_.memory_waiters.push_back(this);
      events_->link_starved();
      return false;
    case ReadOutcome::kEnd:
      down(Status(Code::kWorkerLost,
                  "the connection ended without a goodbye; the process at its other end has probably died"));
      return false;
    case ReadOutcome::kError:
      if (error.code() == Code::kNoMemory) port_.note_exhausted();
      if (error.code() == Code::kCorrupted) {
        corrupted_ = error;
        send_abort(kCorrupted);
      }
      down(error);
      return false;
  }
  return false;
}

std::optional<Status> Link::inspect(Frame& frame) {
  std::optional<Status> why;
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                 auto message = frame.getRoot<capnp::rpc::Message>();
                 if (is_small_chunk(frame, message))
                   small_questions_[message.getCall().getQuestionId()] = nbytes_of(frame);
                 if (message.isAbort()) why = reason_of_abort(message.getAbort());
               })) {
    why =
        Status(Code::kIo, std::string("a malformed message arrived: ") + exception->getDescription().cStr());
  }
  return why;
}

void Link::on_readable() {
  reader_.begin_turn();
  receive_more();
}

void Link::memory_freed() {
  starved_ = false;
  receive_more();
  if (!starved_ && waiting_ && !down_) poll_->want_read(true);
}

void Link::receive_more() {
  if (!waiting_) return poll_->want_read(false);
  Received message;
  if (!try_receive(&message)) return;
  auto* waiting = std::exchange(waiting_, nullptr);
  if (waiting) waiting->fulfill(kj::mv(message));
}

}  // namespace dsgd::transport::uv

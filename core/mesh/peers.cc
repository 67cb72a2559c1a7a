#include "core/mesh/peers.h"

#include <algorithm>
#include <new>
#include <optional>

#include "core/base/catch_bad_alloc.h"
#include "core/base/stopped.h"
#include "core/base/text.h"

namespace dsgd {

using transport::BulkHeader;
using transport::ClientChannel;
using transport::Message;
using transport::ServerChannel;

namespace {

constexpr size_t kLargestChunk = 1 << 20;  // a prototype lost 2-3x with 64 KiB; more than 1 MiB gains nothing
constexpr size_t kSmallestChunk = 4096;
constexpr size_t kChunksInWindow = 4;
// Largest number of operations for which a peer may have unanswered chunks at once.
constexpr size_t kOpenAtOnce = 2 * kOpenTasks + (kChannels - 1) * kOpenTasksOfAChannel;
constexpr size_t kClaimsOfARank = 4;  // connections of one rank that may wait for the view

// Shorter waits for a peer are not worth a span of the trace.
constexpr transport::Duration kTracedWait = std::chrono::milliseconds(1);

struct Sender {
  uint64_t view;
  int32_t rank;
};

// Returns the sender of a message about an object; none for other messages.
std::optional<Sender> sender_of_object_message(const Message& message) {
  if (const auto* put = std::get_if<transport::PutObject>(&message)) return Sender{put->view, put->rank};
  if (const auto* request = std::get_if<transport::DeleteObject>(&message))
    return Sender{request->view, request->rank};
  if (const auto* request = std::get_if<transport::FetchObject>(&message))
    return Sender{request->view, request->rank};
  return std::nullopt;
}

}  // namespace

Peers::Peers(transport::Network& network, PeerOptions options, SessionEvents& session,
             std::shared_ptr<Log> log)
    : network_(network),
      options_(std::move(options)),
      session_(session),
      log_(std::move(log)),
      refusals_(network.loop(), log_) {}

Peers::~Peers() = default;

Status Peers::open(const transport::JoinReply& view) {
  members_ = Members(view);
  const size_t size = view.members.size(), peers = size - 1;
  peers_ = std::vector<Peer>(size);
  // Everything a peer may have on its way or parked here, at the worst, stays within receive_memory.
  size_t share = options_.receive_memory / std::max<size_t>(1, peers * kOpenAtOnce);
  chunk_bytes_ = std::min(kLargestChunk, share / 2 / kSmallestChunk * kSmallestChunk);
  if (chunk_bytes_ < kSmallestChunk) {
    return Status(Code::kInvalidArgument, "receive_memory = " + std::to_string(options_.receive_memory) +
                                              " bytes is too little for " + std::to_string(size) +
                                              " workers; set at least " +
                                              std::to_string(2 * kSmallestChunk * peers * kOpenAtOnce));
  }
  window_ = std::min(share, kChunksInWindow * chunk_bytes_);
  options_.hello.role = transport::Role::kPeer;
  options_.hello.rank = view.rank;
  options_.hello.view = view.view;
  options_.hello.job_nonce = view.job_nonce;
  opened_ = true;
  // Checks the peers that connected before the view was known.
  const auto is_stranger = [this](ServerChannel& channel, const Incoming&) {
    return !is_in_view(channel.hello());
  };
  for (ServerChannel* channel : connections(is_stranger)) disconnect_stranger(*channel);
  for (Early& early : std::exchange(early_, {})) {
    if (early.receipt) {
      on_bulk_end(*early.channel, early.header, std::move(early.receipt));
    } else {
      on_call(*early.channel, std::move(early.message), std::move(early.respond));
    }
  }
  return {};
}

template <typename Chosen>
std::vector<ServerChannel*> Peers::connections(Chosen chosen) const {
  std::vector<ServerChannel*> found;
  for (const auto& [channel, incoming] : incoming_) {
    if (chosen(*channel, incoming)) found.push_back(channel);
  }
  std::sort(found.begin(), found.end(), [this](ServerChannel* a, ServerChannel* b) {
    return incoming_.at(a).number < incoming_.at(b).number;
  });
  return found;
}

bool Peers::is_in_view(const transport::Hello& hello) const {
  const transport::JoinReply& view = members_.view();
  return members_.is_peer(hello.rank) && hello.worker_id == view.members[hello.rank].worker_id &&
         hello.job_nonce == view.job_nonce;
}

Status Peers::not_in_job(const ServerChannel& channel) const {
  const transport::Hello& hello = channel.hello();
  return Status(Code::kMismatch, "a connection from " + channel.address() + " claims to be rank " +
                                     std::to_string(hello.rank) + ", worker '" + printable(hello.worker_id) +
                                     "', which is not in this job");
}

// Only workers that have joined know the job's nonce. Until this worker has, too, claims cannot be told
// apart, and a few of each rank are kept; open() looks at them again. A worker's attempts to connect overlap;
// the one that it uses is known by its first message.
Status Peers::check_claim(const ServerChannel& channel) const {
  const transport::Hello& hello = channel.hello();
  const bool possible =
      hello.rank >= 0 && hello.rank < options_.num_workers && hello.worker_id != options_.hello.worker_id;
  if (opened_ ? !is_in_view(hello) : !possible) return not_in_job(channel);
  const size_t most = opened_ ? size_t{RepeatedDial::kAttempts} : kClaimsOfARank;
  size_t of_rank = 0;
  for (const auto& [other, incoming] : incoming_) {
    if (incoming.rank != hello.rank) continue;
    ++of_rank;
    const bool same =
        other->hello().worker_id == hello.worker_id && other->hello().job_nonce == hello.job_nonce;
    const bool second = same && incoming.used;
    if (!second && of_rank < most) continue;
    // kUnreachable: another attempt may succeed.
    return Status(second ? Code::kExists : Code::kUnreachable,
                  "a connection from " + channel.address() + " claims to be rank " +
                      std::to_string(hello.rank) +
                      (second ? ", which is connected already; each worker has one connection to each other"
                              : ", as too many others do"));
  }
  return {};
}

void Peers::disconnect_stranger(ServerChannel& channel) {
  const Status why = not_in_job(channel);
  refusals_.note("they are not from workers of this job", why.message());
  incoming_.erase(&channel);
  drop_early(channel, why);
  channel.close();
}

Status Peers::blame(int32_t rank, const Status& status) const {
  if (!is_break(status)) return status;
  if (has_left(rank)) return members_.has_closed(rank);
  return status.rank() >= 0 ? status : members_.lost(rank, status);
}

bool Peers::undecided(int32_t rank, const Status& status) const {
  return is_break(status) && !has_left(rank) && !closed_;
}

// ---- sending

void Peers::dial(int32_t rank) {
  transport::DialOptions dial;
  dial.hello = options_.hello;
  dial.token = options_.token;
  dial.deadline = loop().now() + options_.lease;
  dial.bulk_window = window_;
  std::weak_ptr<int> alive = alive_;
  dial.closed = [this, alive, rank](const Status& why) {
    if (!alive.expired() && !closed_) peer_gone(rank, members_.lost(rank, why), why);
  };
  dial.refused = [this, alive, rank](uint64_t operation, const Status& why) {
    if (!alive.expired() && !closed_ && !is_break(why)) operations_->on_refused(operation, why);
  };
  peers_[rank].dial = RepeatedDial::start(
      network_, members_.view().members[rank].addresses, std::move(dial),
      [this, alive, rank](Result<std::unique_ptr<ClientChannel>> result) {
        if (alive.expired() || closed_) return;
        Peer& peer = peers_[rank];
        peer.dial = nullptr;
        if (!result.ok())
          return peer_gone(rank, members_.unreachable(rank, result.status()), result.status());
        peer.channel = std::move(result).value();
        for (Unsent& one : std::exchange(peer.unsent, {})) one.send(*peer.channel);
      });
}

// Ends the dialling of a peer, if it is under way, and with it what waits for the connection.
void Peers::give_up_dial(int32_t rank, const Status& why) {
  Peer& peer = peers_[rank];
  if (peer.dial) std::exchange(peer.dial, nullptr)->cancel();
  for (Unsent& one : std::exchange(peer.unsent, {})) {
    if (one.answered) loop().post([answered = std::move(one.answered), why] { answered(why); });
  }
}

// A connection to or from a peer has ended, perhaps because the peer has closed or the job has failed. Its
// goodbye or the head's news may still be unread, so the peer is reported as unreachable only after a quarter
// of a lease. After a cut, the peer's system may reset both connections, which loses the goodbye. Then the
// head's news ends the wait.
void Peers::peer_gone(int32_t rank, const Status& error, const Status& network_error) {
  if (closed_) return;
  peers_[rank].broken = error;
  give_up_dial(rank, error);
  if (has_left(rank)) return operations_->on_last_answer(rank);  // all that it has answered is in
  // Corruption is reported at once: no other worker knows a better reason.
  if (error.code() == Code::kCorrupted) return session_.on_peer_failure(rank, error);
  if (is_leaving(rank)) return end_wait_for_goodbye(rank);
  std::weak_ptr<int> alive = alive_;
  loop().schedule(loop().now() + options_.lease / 4, [this, alive, rank, error, network_error] {
    if (!alive.expired() && !closed_ && !is_leaving(rank))
      session_.on_peer_unreachable(rank, error, network_error);
  });
}

// Operations that need a peer out of reach fail, or end without it.
bool Peers::is_reachable(int32_t rank) const {
  return peers_[rank].broken.ok() && !closed_ && !has_left(rank);
}

template <typename Send>
void Peers::with_channel(int32_t rank, uint64_t operation, Send send,
                         std::function<void(Result<Message>)> answered) {
  Peer& peer = peers_[rank];
  if (!is_reachable(rank)) return;
  if (peer.channel) return send(*peer.channel);
  peer.unsent.push_back({operation, std::move(send), std::move(answered)});
  if (!peer.dial) dial(rank);
}

void Peers::send(int32_t rank, BulkHeader header, std::span<const std::byte> data,
                 std::function<void(const Status&)> done) {
  header.source = members_.rank();
  header.view = members_.view().view;
  count_sent(rank, data.size());
  with_channel(rank, header.operation,
               [header, data, done = std::move(done)](ClientChannel& channel) mutable {
                 channel.send(header, data, std::move(done));
               });
}

void Peers::send_small(int32_t rank, BulkHeader header, std::span<const std::byte> data) {
  header.source = members_.rank();
  header.view = members_.view().view;
  count_sent(rank, data.size());
  if (peers_[rank].channel && is_reachable(rank))
    return peers_[rank].channel->send_small(header, data, nullptr);
  with_channel(rank, header.operation,
               [header, copy = std::vector<std::byte>(data.begin(), data.end())](ClientChannel& channel) {
                 channel.send_small(header, copy, nullptr);
               });
}

void Peers::call(int32_t rank, Message message, transport::Time deadline,
                 std::function<void(Result<Message>)> done) {
  auto answered = done ? std::move(done) : [](Result<Message>) {};
  if (!is_reachable(rank)) {
    const Status why = !peers_[rank].broken.ok() ? peers_[rank].broken : members_.has_closed(rank);
    return loop().post([answered, why] { answered(why); });
  }
  const auto send = [message = std::move(message), deadline, answered](ClientChannel& channel) {
    channel.call(message, deadline, answered);
  };
  with_channel(rank, 0, send, answered);
}

void Peers::revoke(uint64_t operation) {
  for (Peer& peer : peers_) {
    std::erase_if(peer.unsent, [&](const Unsent& one) { return one.operation == operation; });
    if (peer.channel) peer.channel->revoke(operation);
  }
}

void Peers::revoke(int32_t rank, uint64_t operation) {
  if (peers_[rank].channel) peers_[rank].channel->revoke(operation);
}

void Peers::discard(uint64_t operation, const Status& why) {
  bool whole = true;
  for (auto& [channel, incoming] : incoming_) {
    whole &= catch_bad_alloc([&, channel = channel] { channel->discard(operation, why); });
  }
  if (!whole) throw std::bad_alloc();
}

void Peers::drop_unsent() {
  for (Peer& peer : peers_) std::erase_if(peer.unsent, [](const Unsent& one) { return one.operation != 0; });
}

void Peers::tell_failure(uint64_t operation, bool session, const Status& cause) {
  if (!opened_) return;
  const uint64_t view = members_.view().view;
  const Message message = session ? Message(transport::SessionFailed{view, rank(), cause})
                                  : Message(transport::OperationFailed{view, rank(), operation, cause});
  for (int32_t rank = 0; rank < size(); ++rank) {
    // A lost worker without a connection would not receive it, and closing would wait for the end of the
    // dialling.
    const bool out_of_reach =
        cause.code() == Code::kWorkerLost && rank == cause.rank() && !peers_[rank].channel;
    if (rank == members_.rank() || has_left(rank) || out_of_reach) continue;
    call(rank, message, loop().now() + options_.lease, nullptr);
  }
}

bool Peers::sent() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.unsent.empty(); });
}

void Peers::count_wait(int32_t rank, transport::Time begun, bool failed) {
  Peer& peer = peers_[rank];
  begun = std::max(begun, peer.waited_until);
  const transport::Time now = loop().now();
  peer.waited_until = now;
  peer.counters.wait.add(now - begun);
  if (options_.trace && now - begun >= kTracedWait) {
    options_.trace->record(
        {metrics::Track::kPeer, failed, 0, static_cast<uint32_t>(rank), "wait", 0, 0, begun, now});
  }
}

// ---- leaving

bool Peers::alone() const {
  return opened_ && std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) {
                      return peer.presence == Presence::kLeft;
                    }) == size() - 1;
}

void Peers::note_departure(int32_t rank, uint64_t departure_call) {
  if (!members_.is_peer(rank) || has_left(rank)) return;
  peers_[rank].presence = Presence::kAnnounced;
  peers_[rank].departure_call = departure_call;
  if (is_connected(rank)) return await_goodbye(rank);
  complete_departure(rank);
}

bool Peers::is_connected(int32_t rank) const {
  return std::any_of(incoming_.begin(), incoming_.end(),
                     [rank](const auto& item) { return item.second.rank == rank; });
}

// The head says that this peer has left, but its goodbye has not arrived. Waits two leases: a cut lasts less
// than one lease, and TCP may wait as long again before it resends. If the goodbye never comes, the session
// fails if an operation needs the peer's data, and goes on otherwise.
void Peers::await_goodbye(int32_t rank) {
  const transport::Time due = loop().now() + 2 * options_.lease;
  std::weak_ptr<int> alive = alive_;
  loop().schedule(due, [this, alive, rank, due] {
    if (alive.expired() || closed_ || has_left(rank) || !is_connected(rank)) return;
    if (was_stopped(due, loop().now(), options_.lease)) return await_goodbye(rank);
    complete_departure(rank);
  });
}

// No connection can bring the goodbye any more.
void Peers::end_wait_for_goodbye(int32_t rank) {
  if (peers_[rank].presence == Presence::kAnnounced && !is_connected(rank)) complete_departure(rank);
}

// Marks the peer as left and fails the operations that need it.
// After a goodbye, this worker's own connection may still bring answers. They are complete when that
// connection ends, or after a lease if the peer is stopped. Without a goodbye no more answers are expected.
void Peers::complete_departure(int32_t rank) {
  if (!members_.is_peer(rank) || has_left(rank)) return;
  Peer& peer = peers_[rank];
  peer.presence = Presence::kLeft;
  session_.on_peer_departed(rank);
  operations_->on_departed(rank);
  if (!peer.channel) give_up_dial(rank, members_.has_closed(rank));
  if (!peer.broken.ok() || !peer.channel || !peer.goodbye) return operations_->on_last_answer(rank);
  std::weak_ptr<int> alive = alive_;
  loop().schedule(loop().now() + options_.lease, [this, alive, rank] {
    if (!alive.expired() && !closed_) operations_->on_last_answer(rank);
  });
}

void Peers::report_failure(int32_t rank, const Status& why) {
  loop().post([this, alive = std::weak_ptr(alive_), rank, why] {
    if (!alive.expired() && !closed_) session_.on_peer_failure(rank, why);
  });
}

void Peers::close(const Status& cause, uint64_t steps, const std::vector<uint64_t>& digests,
                  uint64_t departure_call) {
  const transport::Goodbye goodbye{members_.view().view, rank(), cause, steps, digests, departure_call};
  for (Peer& peer : peers_) {
    if (!peer.channel || !peer.broken.ok()) continue;
    peer.channel->call(goodbye, transport::kNever, [](Result<Message>) {});
    peer.channel->close(true);
  }
  for (Peer& peer : peers_) {
    if (peer.dial) std::exchange(peer.dial, nullptr)->cancel();
  }
  closed_ = true;
}

void Peers::drop_channels() {
  closed_ = true;
  early_.clear();
  for (Peer& peer : peers_) {
    peer.unsent.clear();
    peer.dial = nullptr;
    peer.channel = nullptr;
  }
}

// ---- receiving

Status Peers::on_open(ServerChannel& channel) {
  Status refused = check_claim(channel);
  if (refused.ok()) {
    incoming_[&channel] = {.number = next_incoming_++, .rank = channel.hello().rank};
  } else {
    // Of the attempts of a worker that come at once, one is enough.
    if (refused.code() == Code::kExists) {
      log_->debug(refused.message());
    } else {
      refusals_.note(refused.code() == Code::kMismatch ? "they are not from workers of this job"
                                                       : "too many claim to be of one worker",
                     refused.message());
    }
  }
  return refused;
}

// The first message shows which connection its worker uses. Others of that worker are attempts that came at
// once with it.
void Peers::note_use(ServerChannel& channel) {
  const auto used = incoming_.find(&channel);
  if (used == incoming_.end() || std::exchange(used->second.used, true) || !opened_) return;
  const auto is_other = [&](ServerChannel& other, const Incoming& incoming) {
    return &other != &channel && incoming.rank == used->second.rank;
  };
  for (ServerChannel* other : connections(is_other)) {
    incoming_.erase(other);
    other->close();
  }
}

std::unique_ptr<transport::BulkSink> Peers::on_bulk(ServerChannel& channel, const BulkHeader& header,
                                                    size_t nbytes) {
  auto it = incoming_.find(&channel);
  if (it == incoming_.end()) return nullptr;  // refused once it is in
  note_use(channel);
  if (!opened_ || header.view != members_.view().view || header.source != it->second.rank ||
      !members_.is_peer(header.source))
    return nullptr;
  auto sink = is_object(header.operation)
                  ? session_.on_object_data(put_of_object(header.operation), header, nbytes)
                  : operations_->on_bulk(header.source, header, nbytes);
  if (sink) count_received(header.source, nbytes);  // else when it is in
  return sink;
}

void Peers::on_bulk_end(ServerChannel& channel, const BulkHeader& header,
                        std::unique_ptr<transport::BulkReceipt> receipt) {
  auto it = incoming_.find(&channel);
  if (it == incoming_.end() || closed_)
    return receipt->finish(Status(Code::kClosed, "the session is closed"));
  note_use(channel);
  const int32_t source = it->second.rank;
  if (header.source != source ||
      (opened_ && (header.view != members_.view().view || !members_.is_peer(source)))) {
    return receipt->finish(Status(Code::kMismatch, "a chunk from rank " + std::to_string(header.source) +
                                                       " in view " + std::to_string(header.view) +
                                                       " came over the connection of rank " +
                                                       std::to_string(source) + "; this worker is in view " +
                                                       std::to_string(members_.view().view)));
  }
  if (!opened_) {
    if (is_object(header.operation))
      return receipt->finish(Status(Code::kState, "this worker has not asked for an object yet"));
    size_t bytes = receipt->data().size();
    for (const Early& early : early_) bytes += early.receipt ? early.receipt->data().size() : 0;
    if (bytes > options_.receive_memory) {  // a worker of dsgd never sends so much before the job begins
      return receipt->finish(Status(
          Code::kLimit, "the chunks that came before the job began would take more than receive_memory"));
    }
    return early_.push_back({&channel, header, std::move(receipt)});
  }
  count_received(source, receipt->data().size());
  if (is_object(header.operation))
    return session_.on_object_data_end(put_of_object(header.operation), header, std::move(receipt));
  operations_->on_bulk_end(source, header, std::move(receipt));
}

void Peers::drop_early(const ServerChannel& channel, const Status& why) {
  for (Early& early : early_) {
    if (early.channel != &channel) continue;
    early.receipt ? early.receipt->finish(why) : early.respond(why);
  }
  std::erase_if(early_, [&](const Early& early) { return early.channel == &channel; });
}

void Peers::on_call(ServerChannel& channel, Message request, transport::Responder respond) {
  note_use(channel);
  if (auto* failed = std::get_if<transport::OperationFailed>(&request)) {
    respond(Message(transport::Empty{}));
    if (is_from_peer(failed->view, failed->rank) && !failed->cause.ok())
      operations_->on_operation_failed(*failed);
  } else if (auto* broken = std::get_if<transport::SessionFailed>(&request)) {
    respond(Message(transport::Empty{}));
    const Status& cause = broken->cause;
    if (is_from_peer(broken->view, broken->rank) && !cause.ok())
      session_.on_peer_failure(cause.rank() >= 0 ? cause.rank() : broken->rank, cause);
  } else if (auto* question = std::get_if<transport::HasBegun>(&request)) {
    const bool begun = opened_ && operations_->has_begun(question->operation);
    respond(begun ? Result<Message>(Message(transport::Empty{}))
                  : Status(Code::kState,
                           "this worker has not begun operation " + std::to_string(question->operation)));
    if (is_from_peer(question->view, question->rank)) operations_->on_deadline_passed(question->operation);
  } else if (const auto object = sender_of_object_message(request)) {
    // The answer depends on this worker's rank, which is known only once the mesh is open.
    if (!opened_) return early_.push_back({&channel, {}, nullptr, std::move(request), std::move(respond)});
    if (!is_from_peer(object->view, object->rank)) {
      return respond(Status(Code::kMismatch, "an object from rank " + std::to_string(object->rank) +
                                                 " in view " + std::to_string(object->view) +
                                                 ", which is none of this job's"));
    }
    session_.on_object(std::move(request), std::move(respond));
  } else if (auto* goodbye = std::get_if<transport::Goodbye>(&request)) {
    if (auto it = incoming_.find(&channel); it != incoming_.end()) {
      it->second.goodbye = true;
      it->second.cause = goodbye->cause;
      it->second.departure_call = goodbye->departure_call;
      if (opened_ && members_.is_peer(it->second.rank))
        session_.on_goodbye(it->second.rank, goodbye->steps, std::move(goodbye->digests));
    }
    respond(Message(transport::Empty{}));
  } else {
    respond(Status(Code::kUnsupported, "a worker does not answer this message; only the head does"));
  }
}

void Peers::on_close(ServerChannel& channel, const Status& why) {
  auto node = incoming_.extract(&channel);
  if (node.empty() || closed_) return;
  const int32_t rank = node.mapped().rank;
  if (!opened_) return drop_early(channel, why);  // its rank can no longer be checked
  if (!members_.is_peer(rank) || has_left(rank)) return;
  // An attempt to connect that its worker has given up. If the worker is lost, the head notices.
  if (!node.mapped().used) {
    return end_wait_for_goodbye(rank);
  }
  // The peer's cause may arrive before the head's news.
  if (const Status& cause = node.mapped().cause; !cause.ok()) {
    return session_.on_peer_failure(cause.rank() >= 0 ? cause.rank() : rank, cause);
  }
  if (node.mapped().goodbye) {
    peers_[rank].departure_call = node.mapped().departure_call;
    peers_[rank].goodbye = true;
    return complete_departure(rank);
  }
  const Status cause = why.ok() ? Status(Code::kWorkerLost, "it was closed without a goodbye") : why;
  peer_gone(rank, members_.lost(rank, cause), cause);
}

}  // namespace dsgd

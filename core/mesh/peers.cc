#include "core/mesh/peers.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/metrics/trace.h"

namespace dsgd {

using transport::BulkHeader;
using transport::ClientChannel;
using transport::Message;
using transport::ServerChannel;

namespace {

// Chunks of 64 KiB were 2 to 3 times slower; chunks above 1 MiB were not faster.
constexpr size_t kLargestChunk = 1 << 20;
constexpr size_t kSmallestChunk = 2048;
constexpr size_t kChunksInWindow = 4;
constexpr size_t kLargestSmallWindow = 1 << 20;
// Largest number of operations for which a peer may have unanswered chunks at once: it may be kOpenTasks
// buckets ahead, and each may have an operation for its copies (Step::send_means).
constexpr size_t kOpenAtOnce = 4 * kOpenTasks + (kChannels - 1) * kOpenTasksOfAChannel;

// Shorter waits for a peer are not worth a span of the trace.
constexpr transport::Duration kTracedWait = std::chrono::milliseconds(1);

struct Sender {
  uint64_t view;
  int32_t rank;
};

template <typename T>
std::optional<Sender> sender_if(const Message& message) {
  const auto* const is_that = std::get_if<T>(&message);
  return is_that ? std::optional(Sender{is_that->view, is_that->rank}) : std::nullopt;
}

// Returns the sender of a message about an object; none for other messages.
std::optional<Sender> sender_of_object_message(const Message& message) {
  if (auto put = sender_if<transport::PutObject>(message)) return put;
  if (auto deletion = sender_if<transport::DeleteObject>(message)) return deletion;
  return sender_if<transport::FetchObject>(message);
}

// Of a message that counts in one view only.
std::optional<Sender> sender_of(const Message& message) {
  if (auto failed = sender_if<transport::OperationFailed>(message)) return failed;
  if (auto broken = sender_if<transport::SessionFailed>(message)) return broken;
  if (auto question = sender_if<transport::HasBegun>(message)) return question;
  if (auto question = sender_if<transport::HasCompleted>(message)) return question;
  if (auto question = sender_if<transport::FetchState>(message)) return question;
  return sender_of_object_message(message);
}

}  // namespace

Peers::Peers(transport::Network& network, PeerOptions options, SessionEvents& session,
             std::shared_ptr<Log> log)
    : network_(network),
      options_(std::move(options)),
      session_(session),
      incoming_(network.loop(), options_, members_, std::move(log)),
      departures_(network.loop(), options_.lease, members_, incoming_,
                  [this](int32_t rank) { on_left(rank); }) {}

Peers::~Peers() = default;

Status Peers::open(const transport::JoinReply& view) {
  members_ = Members(view);
  const size_t size = view.members.size(),
               peers = (options_.views_change ? static_cast<size_t>(options_.max_workers) : size) - 1;
  for (size_t rank = 0; rank < size; ++rank)
    peers_.push_back(std::make_shared<Peer>(static_cast<int32_t>(rank)));
  departures_.begin_view();
  share_counters();
  // Everything that peers may have on its way or parked here, at the worst, stays within receive_memory.
  // Otherwise chunks of later operations could leave no room for the chunk that this worker waits for. Each
  // operation may have one small chunk beyond the small window.
  const size_t of_peer = options_.receive_memory / std::max<size_t>(1, peers);
  small_window_ = std::min(kLargestSmallWindow, of_peer / 4);
  const size_t share = (of_peer - small_window_) / kOpenAtOnce;
  chunk_bytes_ = std::min(kLargestChunk, share / 2 / kSmallestChunk * kSmallestChunk);
  if (chunk_bytes_ < kSmallestChunk) {
    constexpr size_t kLeastOfPeer = 2 * kSmallestChunk * kOpenAtOnce / 3 * 4 + 4;
    return Status(Code::kInvalidArgument, "receive_memory = " + std::to_string(options_.receive_memory) +
                                              " bytes is too little for " + std::to_string(peers + 1) +
                                              " workers; set at least " +
                                              std::to_string(kLeastOfPeer * peers));
  }
  window_ = std::min(share - std::min(chunk_bytes_, transport::kSmallBytes), kChunksInWindow * chunk_bytes_);
  options_.hello.role = transport::Role::kPeer;
  options_.hello.rank = view.rank;
  options_.hello.view = view.learner ? std::numeric_limits<uint64_t>::max() : view.view;
  options_.hello.job_nonce = view.job_nonce;
  opened_ = true;
  incoming_.open();
  handle_early();
  return {};
}

void Peers::handle_early() {
  for (IncomingConnections::Early& early : incoming_.take_early()) {
    if (early.receipt) {
      on_bulk_end(*early.channel, early.header, std::move(early.receipt));
    } else {
      on_call(*early.channel, std::move(early.message), std::move(early.respond));
    }
  }
}

void Peers::change_view(const transport::JoinReply& view) {
  const Members before = std::exchange(members_, Members(view));
  auto known = std::exchange(peers_, {});
  for (int32_t rank = 0; rank < size(); ++rank) {
    const std::string& id = view.members[static_cast<size_t>(rank)].worker_id;
    const auto same = [&](const auto& peer) {
      return peer && before.view().members[static_cast<size_t>(peer->rank)].worker_id == id;
    };
    const auto found = std::find_if(known.begin(), known.end(), same);
    peers_.push_back(found == known.end() ? std::make_shared<Peer>(rank) : std::move(*found));
    Peer& peer = *peers_.back();
    peer.rank = rank;
    // To be dialled again. Callbacks of its calls may be posted already, and still come.
    if (!peer.broken.ok() && peer.channel) close_in_callback(loop(), std::move(peer.channel));
    peer.broken = {};
  }
  departures_.begin_view();
  share_counters();
  options_.hello.rank = view.rank;
  options_.hello.view = view.view;
  for (const auto& gone : known) {
    if (!gone) continue;
    give_up_dial(*gone, Status(Code::kViewChanged, "the worker is no longer in the job"));
  }
  incoming_.change_view();
  handle_early();
}

// Replaces the list that other threads read.
void Peers::share_counters() {
  std::lock_guard lock(counters_mutex_);
  counters_.clear();
  for (const auto& peer : peers_) counters_.push_back(peer->counters);
}

std::vector<std::shared_ptr<const metrics::PeerCounters>> Peers::counters() const {
  std::lock_guard lock(counters_mutex_);
  return counters_;
}

Status Peers::failure_of_call(int32_t rank, const Status& status) const {
  if (!is_break(status)) return status;
  if (has_left(rank)) return members_.closed_error(rank);
  return status.rank() >= 0 ? status : members_.lost_error(rank, status);
}

bool Peers::is_loss_undecided(int32_t rank, const Status& status) const {
  return is_break(status) && !has_left(rank) && !closed_;
}

// ---- sending

void Peers::dial(int32_t rank) {
  transport::DialOptions dial;
  dial.hello = options_.hello;
  dial.token = options_.token;
  dial.deadline = loop().now() + options_.lease;
  dial.bulk_window = window_;
  dial.small_window = small_window_;
  const std::weak_ptr<Peer> weak = peers_[rank];
  dial.closed = [this, weak](const Status& why) {
    const auto peer = weak.lock();
    if (peer && !closed_) peer_gone(peer->rank, members_.lost_error(peer->rank, why), why);
  };
  dial.refused = [this, weak](uint64_t operation, const Status& why) {
    if (!weak.expired() && !closed_ && !is_break(why)) operations_->on_refused(operation, why);
  };
  peers_[rank]->dial = RepeatedDial::start(
      network_, members_.view().members[rank].addresses, std::move(dial),
      [this, weak](Result<std::unique_ptr<ClientChannel>> result) {
        const auto peer = weak.lock();
        if (!peer || closed_) return;
        peer->dial = nullptr;
        if (!result.ok())
          return peer_gone(peer->rank, members_.unreachable_error(peer->rank, result.status()),
                           result.status());
        peer->channel = std::move(result).value();
        for (Unsent& one : std::exchange(peer->unsent, {})) one.send(*peer->channel);
      });
}

// Ends the dialling of a peer, if it is under way, and with it what waits for the connection.
void Peers::give_up_dial(Peer& peer, const Status& why) {
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
  peers_[rank]->broken = error;
  give_up_dial(*peers_[rank], error);
  if (has_left(rank)) return operations_->on_last_answer(rank);  // no further answer can come
  // Corruption is reported at once: no other worker knows a better reason.
  if (error.code() == Code::kCorrupted) return session_.on_peer_failure(rank, error);
  if (is_leaving(rank)) return departures_.note_end_of_connection(rank);
  loop().schedule(loop().now() + options_.lease / 4,
                  [this, weak = std::weak_ptr(peers_[rank]), error, network_error] {
                    const auto peer = weak.lock();
                    if (peer && !closed_ && !is_leaving(peer->rank) && !peer->broken.ok())
                      session_.on_peer_unreachable(peer->rank, error, network_error, false);
                  });
}

// Operations that need a peer out of reach fail, or end without it.
bool Peers::is_reachable(int32_t rank) const {
  return peers_[rank]->broken.ok() && !closed_ && !has_left(rank);
}

template <typename Send>
void Peers::with_channel(int32_t rank, uint64_t operation, Send send,
                         std::function<void(Result<Message>)> answered) {
  Peer& peer = *peers_[rank];
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
  if (peers_[rank]->channel && is_reachable(rank))
    return peers_[rank]->channel->send_small(header, data, nullptr);
  with_channel(rank, header.operation,
               [header, copy = std::vector<std::byte>(data.begin(), data.end())](ClientChannel& channel) {
                 channel.send_small(header, copy, nullptr);
               });
}

void Peers::call(int32_t rank, Message message, transport::Time deadline,
                 std::function<void(Result<Message>)> done) {
  auto answered = done ? std::move(done) : [](Result<Message>) {};
  if (!is_reachable(rank)) {
    const Status why = !peers_[rank]->broken.ok() ? peers_[rank]->broken : members_.closed_error(rank);
    return loop().post([answered, why] { answered(why); });
  }
  const auto send = [message = std::move(message), deadline, answered](ClientChannel& channel) {
    channel.call(message, deadline, answered);
  };
  with_channel(rank, 0, send, answered);
}

void Peers::revoke(uint64_t operation) {
  for (const auto& peer : peers_) {
    std::erase_if(peer->unsent, [&](const Unsent& one) { return one.operation == operation; });
    if (peer->channel) peer->channel->revoke(operation);
  }
}

void Peers::revoke(int32_t rank, uint64_t operation) {
  if (peers_[rank]->channel) peers_[rank]->channel->revoke(operation);
}

void Peers::discard(uint64_t operation, const Status& why) { incoming_.discard(operation, why); }

void Peers::drop_unsent() {
  for (const auto& peer : peers_)
    std::erase_if(peer->unsent, [](const Unsent& one) { return one.operation != 0; });
}

void Peers::tell_operation_failed(uint64_t operation, const Status& cause) {
  if (opened_)
    tell_failure(transport::OperationFailed{members_.view().view, rank(), operation, cause}, cause);
}

void Peers::tell_session_failed(const Status& cause) {
  if (opened_) tell_failure(transport::SessionFailed{members_.view().view, rank(), cause}, cause);
}

// `cause`: of the message.
void Peers::tell_failure(const Message& message, const Status& cause) {
  for (int32_t rank = 0; rank < size(); ++rank) {
    // A lost worker without a connection would not receive it, and closing would wait for the end of the
    // dialling.
    const bool out_of_reach =
        cause.code() == Code::kWorkerLost && rank == cause.rank() && !peers_[rank]->channel;
    if (rank == members_.rank() || has_left(rank) || out_of_reach) continue;
    call(rank, message, loop().now() + options_.lease, nullptr);
  }
}

bool Peers::all_sent() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) {
    return peer->unsent.empty() && (!peer->channel || !peer->broken.ok() || peer->channel->all_sent());
  });
}

void Peers::count_wait(int32_t rank, transport::Time begun, bool failed) {
  Peer& peer = *peers_[rank];
  begun = std::max(begun, peer.waited_until);
  const transport::Time now = loop().now();
  peer.waited_until = now;
  peer.counters->wait.add(now - begun);
  if (options_.trace && now - begun >= kTracedWait) {
    options_.trace->record(
        {metrics::Track::kPeer, failed, 0, static_cast<uint32_t>(rank), "wait", 0, 0, begun, now});
  }
}

// ---- leaving

// Fails the operations that need the peer. After a goodbye, this worker's own connection may still bring
// answers. They are complete when that connection ends, or after a lease if the peer is stopped. Without a
// goodbye no more answers are expected.
void Peers::on_left(int32_t rank) {
  Peer& peer = *peers_[rank];
  session_.on_peer_departed(rank);
  operations_->on_departed(rank);
  if (!peer.channel) give_up_dial(peer, members_.closed_error(rank));
  if (!peer.broken.ok() || !peer.channel || !said_goodbye(rank)) return operations_->on_last_answer(rank);
  loop().schedule(loop().now() + options_.lease, [this, weak = std::weak_ptr(peers_[rank])] {
    const auto peer = weak.lock();
    if (peer && !closed_) operations_->on_last_answer(peer->rank);
  });
}

void Peers::report_failure(int32_t rank, const Status& why) {
  loop().post([this, weak = std::weak_ptr(peers_[rank]), why] {
    const auto peer = weak.lock();
    if (peer && !closed_) session_.on_peer_failure(peer->rank, why);
  });
}

void Peers::close(const Status& cause, uint64_t steps, const std::vector<uint64_t>& digests,
                  uint64_t departure_call) {
  const transport::Goodbye goodbye{members_.view().view, rank(), cause, steps, digests, departure_call};
  for (const auto& peer : peers_) {
    if (!peer->channel || !peer->broken.ok()) continue;
    peer->channel->call(goodbye, transport::kNever, [](Result<Message>) {});
    peer->channel->close(true);
  }
  for (const auto& peer : peers_) {
    if (peer->dial) std::exchange(peer->dial, nullptr)->cancel();
  }
  closed_ = true;
  departures_.close();
}

void Peers::drop_channels() {
  closed_ = true;
  departures_.close();
  incoming_.drop_early(session_closed());
  for (const auto& peer : peers_) {
    peer->unsent.clear();
    peer->dial = nullptr;
    peer->channel = nullptr;
  }
}

// ---- receiving

Status Peers::on_open(ServerChannel& channel) { return incoming_.admit(channel); }

std::unique_ptr<transport::BulkSink> Peers::on_bulk(ServerChannel& channel, const BulkHeader& header,
                                                    size_t nbytes) {
  const IncomingConnections::Connection* const connection = incoming_.find(channel);
  if (!connection) return nullptr;  // on_bulk_end() refuses it
  incoming_.note_use(channel);
  if (!is_peer_of(connection, header.view, header.source)) return nullptr;
  auto sink = is_object(header.operation)
                  ? session_.on_object_data(put_of_object(header.operation), header, nbytes)
                  : operations_->on_bulk(header.source, header, nbytes);
  if (sink) count_received(header.source, nbytes);  // without a sink, on_bulk_end() counts it
  return sink;
}

void Peers::on_bulk_end(ServerChannel& channel, const BulkHeader& header,
                        std::unique_ptr<transport::BulkReceipt> receipt) {
  const IncomingConnections::Connection* const connection = incoming_.find(channel);
  if (!connection || closed_) return receipt->finish(session_closed());
  incoming_.note_use(channel);
  const int32_t source = connection->rank;
  if (!opened_) return on_early_chunk(channel, source, header, std::move(receipt));
  const uint64_t view = members_.view().view;
  if (options_.views_change && header.view < view) {
    return receipt->finish(Status(Code::kViewChanged, "the chunk is of view " + std::to_string(header.view) +
                                                          ", and this worker is in view " +
                                                          std::to_string(view)));
  }
  if (options_.views_change && header.view > view) return incoming_.keep(channel, header, std::move(receipt));
  if (header.source != source || header.view != view || !members_.is_peer(source))
    return receipt->finish(wrong_source(source, header));
  count_received(source, receipt->data().size());
  if (is_object(header.operation))
    return session_.on_object_data_end(put_of_object(header.operation), header, std::move(receipt));
  operations_->on_bulk_end(source, header, std::move(receipt));
}

// With changing views the rank of a connection may be that of an earlier view; open() finds the present one.
void Peers::on_early_chunk(ServerChannel& channel, int32_t source, const BulkHeader& header,
                           std::unique_ptr<transport::BulkReceipt> receipt) {
  if (header.source != source && !options_.views_change) return receipt->finish(wrong_source(source, header));
  if (is_object(header.operation))
    return receipt->finish(Status(Code::kState, "this worker has not asked for an object yet"));
  incoming_.keep(channel, header, std::move(receipt));
}

Status Peers::wrong_source(int32_t source, const BulkHeader& header) const {
  return Status(Code::kMismatch, "a chunk from rank " + std::to_string(header.source) + " in view " +
                                     std::to_string(header.view) + " came over the connection of rank " +
                                     std::to_string(source) + "; this worker is in view " +
                                     std::to_string(members_.view().view));
}

void Peers::on_call(ServerChannel& channel, Message request, transport::Responder respond) {
  incoming_.note_use(channel);
  const auto sender = sender_of(request);
  if (opened_ && options_.views_change && sender && sender->view > members_.view().view)
    return incoming_.keep(channel, std::move(request), std::move(respond));
  auto* const connection = incoming_.find(channel);
  if (auto* failed = std::get_if<transport::OperationFailed>(&request)) {
    respond(Message(transport::Empty{}));
    if (is_peer_of(connection, failed->view, failed->rank) && !failed->cause.ok())
      operations_->on_operation_failed(*failed);
  } else if (auto* broken = std::get_if<transport::SessionFailed>(&request)) {
    respond(Message(transport::Empty{}));
    const Status& cause = broken->cause;
    if (is_peer_of(connection, broken->view, broken->rank) && !cause.ok())
      session_.on_peer_failure(cause.rank() >= 0 ? cause.rank() : broken->rank, cause);
  } else if (auto* question = std::get_if<transport::HasBegun>(&request)) {
    const bool begun = opened_ && operations_->has_begun(question->operation);
    respond(begun ? Result<Message>(Message(transport::Empty{}))
                  : Status(Code::kState,
                           "this worker has not begun operation " + std::to_string(question->operation)));
    if (is_peer_of(connection, question->view, question->rank))
      operations_->on_deadline_passed(question->operation);
  } else if (auto* closing = std::get_if<transport::HasCompleted>(&request)) {
    if (is_peer_of(connection, closing->view, closing->rank)) {
      session_.on_completion_asked(closing->steps, std::move(respond));
    } else {
      respond(Status(Code::kViewChanged, "the workers of the job have changed; ask again"));
    }
  } else if (auto* state = std::get_if<transport::FetchState>(&request)) {
    if (opened_) return session_.on_state_asked(channel.hello().worker_id, *state, std::move(respond));
    respond(Status(Code::kState, "this worker has no state yet"));
  } else if (const auto object = sender_of_object_message(request)) {
    // The answer depends on this worker's rank, which is known only once the mesh is open.
    if (!opened_) return incoming_.keep(channel, std::move(request), std::move(respond));
    if (options_.views_change && object->view < members_.view().view) {
      return respond(call_of_earlier_view());
    }
    if (!is_peer_of(connection, object->view, object->rank)) {
      return respond(Status(Code::kMismatch, "an object message names rank " + std::to_string(object->rank) +
                                                 " of view " + std::to_string(object->view) +
                                                 " as its sender, which is no peer of this worker in view " +
                                                 std::to_string(members_.view().view)));
    }
    session_.on_object(std::move(request), std::move(respond));
  } else if (auto* goodbye = std::get_if<transport::Goodbye>(&request)) {
    if (connection) {
      auto digests = std::exchange(goodbye->digests, {});
      connection->goodbye = *goodbye;
      if (opened_ && members_.is_peer(connection->rank))
        session_.on_goodbye(connection->rank, goodbye->steps, std::move(digests));
    }
    respond(Message(transport::Empty{}));
  } else {
    respond(Status(Code::kUnsupported, "a worker does not answer this message; only the head does"));
  }
}

void Peers::on_close(ServerChannel& channel, const Status& why) {
  const auto connection = incoming_.remove(channel);
  if (!connection || closed_) return;
  const int32_t rank = connection->rank;
  if (opened_ && rank < 0 && connection->used) session_.on_newcomer_gone(channel.hello().worker_id);
  if (!opened_ || rank < 0) return incoming_.drop_early(channel, why);  // its rank can no longer be checked
  if (!members_.is_peer(rank) || has_left(rank)) return;
  // An attempt to connect that its worker has given up. If the worker is lost, the head notices.
  if (!connection->used) return departures_.note_end_of_connection(rank);
  const auto& goodbye = connection->goodbye;
  // The peer's cause may arrive before the head's news.
  if (goodbye && !goodbye->cause.ok())
    return session_.on_peer_failure(goodbye->cause.rank() >= 0 ? goodbye->cause.rank() : rank,
                                    goodbye->cause);
  // A goodbye of an earlier view names a call of that view; the head takes its sender out of this one.
  if (goodbye && goodbye->view == members_.view().view)
    return departures_.note_goodbye(rank, goodbye->departure_call);
  const std::string how =
      goodbye ? "it was closed in view " + std::to_string(goodbye->view) : "it was closed without a goodbye";
  const Status cause = why.ok() ? Status(Code::kWorkerLost, how) : why;
  peer_gone(rank, members_.lost_error(rank, cause), cause);
}

}  // namespace dsgd

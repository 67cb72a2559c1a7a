#include "core/mesh/peers.h"

#include <type_traits>
#include <utility>
#include <variant>

#include "core/mesh/operations.h"

namespace dsgd {

using transport::BulkHeader;
using transport::Message;
using transport::ServerChannel;

namespace {

template <typename T, typename... Kinds>
concept IsAnyOf = (std::is_same_v<T, Kinds> || ...);
template <typename T>
concept OfObject = IsAnyOf<T, transport::PutObject, transport::DeleteObject, transport::FetchObject>;
// A message that counts in one view only.
template <typename T>
concept OfView = OfObject<T> || IsAnyOf<T, transport::OperationFailed, transport::SessionFailed,
                                        transport::HasBegun, transport::HasCompleted, transport::FetchState>;

// Returns the view that a message names; 0: it counts in any view.
uint64_t view_named_by(const Message& message) {
  return std::visit(
      []<typename T>(const T& kind) -> uint64_t {
        if constexpr (OfView<T>) {
          return kind.view;
        } else {
          return 0;
        }
      },
      message);
}

// The answer to a message about an object. `present`: number of the view.
Status not_from_peer(uint64_t view, int32_t rank, uint64_t present) {
  return Status(Code::kMismatch,
                "an object message names rank " + std::to_string(rank) + " of view " + std::to_string(view) +
                    " as its sender, which is no peer of this worker in view " + std::to_string(present));
}

// Overloads for std::visit, by kind of message. The most specific one is called.
template <typename... Handlers>
struct MessageHandlers : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
MessageHandlers(Handlers...) -> MessageHandlers<Handlers...>;

}  // namespace

Peers::Peers(transport::Network& network, PeerOptions options, SessionEvents& session,
             std::shared_ptr<Log> log)
    : network_(network),
      options_(std::move(options)),
      session_(session),
      metrics_(options_.trace),
      outgoing_(
          network, options_, members_,
          [this](int32_t rank, const Status& error, const Status& network_error) {
            peer_gone(rank, error, network_error);
          },
          [this](uint64_t operation, const Status& why) { operations_->on_chunk_rejected(operation, why); }),
      incoming_(network.loop(), options_, members_, std::move(log)),
      departures_(network.loop(), options_.lease, members_, incoming_,
                  [this](int32_t rank) { on_left(rank); }) {}

Peers::~Peers() = default;

Status Peers::open(const transport::JoinReply& view) {
  members_ = Members(view);
  const std::vector<int32_t> earlier = members_.ranks_in(Members());
  outgoing_.begin_view(earlier);
  metrics_.begin_view(earlier);
  departures_.begin_view();
  const size_t workers =
      options_.views_change ? static_cast<size_t>(options_.max_workers) : view.members.size();
  DSGD_RETURN_IF_ERROR(outgoing_.set_windows(workers - 1));
  options_.hello.role = transport::Role::kPeer;
  options_.hello.rank = view.rank;
  options_.hello.view = view.learner ? transport::Hello::kLaterView : view.view;
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
  const std::vector<int32_t> earlier = members_.ranks_in(before);
  const auto gone = outgoing_.begin_view(earlier);  // closed at the end
  metrics_.begin_view(earlier);
  departures_.begin_view();
  options_.hello.rank = view.rank;
  options_.hello.view = view.view;
  incoming_.change_view();
  handle_early();
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

// A connection to or from a peer has ended, perhaps because the peer has closed or the job has failed. Its
// goodbye or the head's news may still be unread, so the peer is reported as unreachable only after a quarter
// of a lease. After a cut, the peer's system may reset both connections, which loses the goodbye. Then the
// head's news ends the wait.
void Peers::peer_gone(int32_t rank, const Status& error, const Status& network_error) {
  if (closed_) return;
  outgoing_.fail(rank, error);
  if (has_left(rank)) return operations_->on_last_answer(rank);  // no further answer can come
  // Reports corruption at once: only this worker knows the cause.
  if (error.code() == Code::kCorrupted) return session_.on_peer_failure(rank, error);
  if (is_leaving(rank)) return departures_.note_end_of_connection(rank);
  loop().schedule(loop().now() + options_.lease / 4,
                  task_for(rank, [this, error, network_error](int32_t now_rank) {
                    if (!is_leaving(now_rank) && !outgoing_.failure(now_rank).ok())
                      session_.on_peer_unreachable(now_rank, error, network_error, false);
                  }));
}

std::function<void()> Peers::task_for(int32_t rank, std::function<void(int32_t rank)> then) {
  return [this, worker = outgoing_.follow(rank), then = std::move(then)] {
    const auto present = worker.lock();
    if (present && !closed_) then(*present);
  };
}

// Operations that need a peer out of reach fail, or end without it.
bool Peers::is_reachable(int32_t rank) const {
  return outgoing_.failure(rank).ok() && !closed_ && !has_left(rank);
}

void Peers::send(int32_t rank, BulkHeader header, std::span<const std::byte> data,
                 std::function<void(const Status&)> done) {
  header.source = members_.rank();
  header.view = members_.view().view;
  count_sent(rank, data.size());
  if (is_reachable(rank)) outgoing_.send(rank, header, data, std::move(done));
}

void Peers::send_small(int32_t rank, BulkHeader header, std::span<const std::byte> data) {
  header.source = members_.rank();
  header.view = members_.view().view;
  count_sent(rank, data.size());
  if (is_reachable(rank)) outgoing_.send_small(rank, header, data);
}

void Peers::call(int32_t rank, Message message, transport::Time deadline,
                 std::function<void(Result<Message>)> done) {
  auto answered = done ? std::move(done) : [](Result<Message>) {};
  if (!is_reachable(rank)) {
    const Status& failure = outgoing_.failure(rank);
    const Status why = !failure.ok() ? failure : members_.closed_error(rank);
    return loop().post([answered, why] { answered(why); });
  }
  outgoing_.call(rank, std::move(message), deadline, std::move(answered));
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
        cause.code() == Code::kWorkerLost && rank == cause.rank() && !outgoing_.is_open(rank);
    if (rank == members_.rank() || has_left(rank) || out_of_reach) continue;
    call(rank, message, loop().now() + options_.lease, nullptr);
  }
}

void Peers::fail_session() {
  *failed_ = true;
  outgoing_.drop_unsent();
}

transport::Responder Peers::without_cause(transport::Responder respond) const {
  return [failed = failed_, respond = std::move(respond)](Result<Message> answer) {
    respond(*failed && !answer.ok() ? Result<Message>(session_closed()) : std::move(answer));
  };
}

// ---- leaving

// Fails the operations that need the peer. After a goodbye, this worker's own connection may still bring
// answers. They are complete when that connection ends, or after a lease if the peer is stopped. Without a
// goodbye no more answers are expected.
void Peers::on_left(int32_t rank) {
  const uint64_t view = members_.view().view;
  session_.on_peer_departed(rank);
  operations_->on_departed(rank);
  if (members_.view().view != view) return;  // the rank is one of the earlier view
  outgoing_.give_up_dial(rank, members_.closed_error(rank));
  if (!outgoing_.is_open(rank) || !said_goodbye(rank)) return operations_->on_last_answer(rank);
  loop().schedule(loop().now() + options_.lease,
                  task_for(rank, [this](int32_t now_rank) { operations_->on_last_answer(now_rank); }));
}

void Peers::report_failure(int32_t rank, const Status& why) {
  loop().post(task_for(rank, [this, why](int32_t now_rank) { session_.on_peer_failure(now_rank, why); }));
}

void Peers::close(const Status& cause, uint64_t steps, const std::vector<uint64_t>& digests,
                  uint64_t departure_call) {
  outgoing_.close(transport::Goodbye{members_.view().view, rank(), cause, steps, digests, departure_call});
  closed_ = true;
  departures_.close();
}

void Peers::drop_channels() {
  closed_ = true;
  departures_.close();
  incoming_.drop_early(session_closed());
  outgoing_.drop_channels();
}

// ---- receiving

Status Peers::on_open(ServerChannel& channel) { return incoming_.admit(channel); }

std::unique_ptr<transport::BulkSink> Peers::on_bulk(ServerChannel& channel, const BulkHeader& header,
                                                    size_t nbytes) {
  const IncomingConnections::Connection* const connection = incoming_.find(channel);
  if (!connection) return nullptr;  // on_bulk_end() rejects it
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
  if (options_.views_change) respond = without_cause(std::move(respond));
  if (opened_ && options_.views_change && view_named_by(request) > members_.view().view)
    return incoming_.keep(channel, std::move(request), std::move(respond));
  auto* const connection = incoming_.find(channel);
  const auto is_from_peer = [&](const auto& message) {
    return is_peer_of(connection, message.view, message.rank);
  };
  const MessageHandlers handlers = {
      [&](transport::OperationFailed& failed) {
        respond(Message(transport::Empty{}));
        if (is_from_peer(failed) && !failed.cause.ok()) operations_->on_operation_failed(failed);
      },
      [&](transport::SessionFailed& failed) {
        respond(Message(transport::Empty{}));
        const Status& cause = failed.cause;
        if (is_from_peer(failed) && !cause.ok())
          session_.on_peer_failure(cause.rank() >= 0 ? cause.rank() : failed.rank, cause);
      },
      [&](transport::HasBegun& question) {
        const bool begun = opened_ && operations_->has_begun(question.operation);
        respond(begun ? Result<Message>(Message(transport::Empty{}))
                      : Status(Code::kState,
                               "this worker has not begun operation " + std::to_string(question.operation)));
        if (is_from_peer(question)) operations_->on_deadline_passed(question.operation);
      },
      [&](transport::HasCompleted& question) {
        if (is_from_peer(question))
          return session_.on_completion_asked(question.rank, question.steps, std::move(respond));
        respond(Status(Code::kViewChanged, "the workers of the job have changed; ask again"));
      },
      [&](transport::FetchState& question) {
        if (opened_) return session_.on_state_asked(channel.hello().worker_id, question, std::move(respond));
        respond(Status(Code::kState, "this worker has no state yet"));
      },
      [&]<OfObject T>(T& message) {
        // The answer depends on this worker's rank, which is known only once the mesh is open.
        if (!opened_) return incoming_.keep(channel, std::move(message), std::move(respond));
        if (options_.views_change && message.view < members_.view().view)
          return respond(call_of_earlier_view());
        if (!is_from_peer(message))
          return respond(not_from_peer(message.view, message.rank, members_.view().view));
        session_.on_object(std::move(message), std::move(respond));
      },
      [&](transport::Goodbye& goodbye) {
        if (connection) {
          auto digests = std::exchange(goodbye.digests, {});
          connection->goodbye = goodbye;
          if (opened_ && members_.is_peer(connection->rank))
            session_.on_goodbye(connection->rank, goodbye.steps, std::move(digests));
        }
        respond(Message(transport::Empty{}));
      },
      [&](auto&) {
        respond(Status(Code::kUnsupported, "a worker does not answer this message; only the head does"));
      },
  };
  std::visit(handlers, request);
}

void Peers::on_close(ServerChannel& channel, const Status& why) {
  const auto connection = incoming_.remove(channel);
  if (!connection || closed_) return;
  const int32_t rank = connection->rank;
  if (opened_ && rank < 0 && connection->used) session_.on_learner_gone(channel.hello().worker_id);
  if (!opened_ || rank < 0) return;
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

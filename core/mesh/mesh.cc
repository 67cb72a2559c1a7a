#include "core/mesh/mesh.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "core/base/address.h"
#include "core/base/catch_bad_alloc.h"
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
constexpr size_t kOpenAtOnce = 2 * Mesh::kOpenTasks + (Mesh::kChannels - 1) * Mesh::kOpenTasksOfAChannel;
constexpr size_t kClaimsOfARank = 4;  // connections of one rank that may wait for the view
// Wait for the answers to "have you begun?". Constant: a call returns within 100 ms after its deadline,
// whatever the lease.
constexpr transport::Duration kAsking = std::chrono::milliseconds(50);

// Shorter waits for a peer are not worth a span of the trace.
constexpr transport::Duration kTracedWait = std::chrono::milliseconds(1);

// The root of a broadcast ends when all peers have begun: if it ran ahead of them, its data would fill their
// memory.
bool is_broadcast_root(const BulkHeader& shape, int32_t rank) {
  return shape.algorithm == static_cast<uint8_t>(Algorithm::kChain) && shape.root == rank;
}

// Is this a broken connection, rather than an answer of the peer?
bool is_break(const Status& status) {
  return status.code() == Code::kWorkerLost || status.code() == Code::kUnreachable ||
         status.code() == Code::kClosed || status.code() == Code::kIo || status.code() == Code::kCorrupted;
}

// Of parked chunks, by operation.
template <typename Parked>
void drop_chunks(Parked& parked, const ServerChannel& channel, const Status& why) {
  for (auto& [operation, chunks] : parked) {
    for (auto& chunk : chunks) {
      if (chunk.channel == &channel) chunk.receipt->finish(why);
    }
    std::erase_if(chunks, [&](const auto& chunk) { return chunk.channel == &channel; });
  }
}

template <typename Parked>
size_t bytes_of(const Parked& parked) {
  size_t bytes = 0;
  for (const auto& [operation, chunks] : parked) {
    for (const auto& chunk : chunks) bytes += chunk.receipt->data().size();
  }
  return bytes;
}

}  // namespace

Mesh::Mesh(transport::Network& network, MeshOptions options, MeshEvents& events, std::shared_ptr<Log> log)
    : network_(network),
      options_(std::move(options)),
      events_(events),
      log_(std::move(log)),
      refusals_(network.loop(), log_) {
  for (uint32_t channel = 0; channel < kChannels; ++channel)
    calls_ended_below_[channel] = call_number(channel, 1);
}

Mesh::~Mesh() = default;

Status Mesh::open(const transport::JoinReply& view) {
  view_ = view;
  const size_t peers = view_.members.size() - 1;
  outgoing_.resize(view_.members.size());
  counters_ = std::make_unique<metrics::PeerCounters[]>(view_.members.size());
  waited_until_.assign(view_.members.size(), {});
  left_.assign(view_.members.size(), 0);
  departed_.assign(view_.members.size(), 0);
  first_call_not_made_.assign(view_.members.size(), 0);
  std::vector<int32_t> all(view_.members.size());
  std::iota(all.begin(), all.end(), 0);
  world_ = std::make_shared<const Group>(std::move(all), view_.rank);
  // Everything a peer may have on its way or parked here, at the worst, stays within receive_memory.
  size_t share = options_.receive_memory / std::max<size_t>(1, peers * kOpenAtOnce);
  chunk_bytes_ = std::min(kLargestChunk, share / 2 / kSmallestChunk * kSmallestChunk);
  if (chunk_bytes_ < kSmallestChunk) {
    return Status(Code::kInvalidArgument,
                  "receive_memory = " + std::to_string(options_.receive_memory) +
                      " bytes is too little for " + std::to_string(view_.members.size()) +
                      " workers; set at least " + std::to_string(2 * kSmallestChunk * peers * kOpenAtOnce));
  }
  window_ = std::min(share, kChunksInWindow * chunk_bytes_);
  options_.hello.role = transport::Role::kPeer;
  options_.hello.rank = view_.rank;
  options_.hello.view = view_.view;
  options_.hello.job_nonce = view_.job_nonce;
  opened_ = true;
  // Checks the peers that connected before the view was known.
  const auto is_stranger = [this](ServerChannel& channel, const Incoming&) {
    return !is_in_view(channel.hello());
  };
  for (ServerChannel* channel : connections(is_stranger)) disconnect_stranger(*channel);
  for (const auto& [operation, chunks] : parked_) {
    for (const Parked& chunk : chunks) counters_[chunk.source].received.add(chunk.receipt->data().size());
  }
  probed_.assign(view_.members.size(), 0);
  if (options_.probe && size() > 1) watch_peers();
  for (EarlyObject& early : std::exchange(early_objects_, {})) {
    on_call(*early.channel, std::move(early.part), std::move(early.respond));
  }
  return {};
}

template <typename Chosen>
std::vector<ServerChannel*> Mesh::connections(Chosen chosen) const {
  std::vector<ServerChannel*> found;
  for (const auto& [channel, incoming] : incoming_) {
    if (chosen(*channel, incoming)) found.push_back(channel);
  }
  std::sort(found.begin(), found.end(), [this](ServerChannel* a, ServerChannel* b) {
    return incoming_.at(a).number < incoming_.at(b).number;
  });
  return found;
}

bool Mesh::is_in_view(const transport::Hello& hello) const {
  return is_peer(hello.rank) && hello.worker_id == view_.members[hello.rank].worker_id &&
         hello.job_nonce == view_.job_nonce;
}

Status Mesh::not_in_job(const ServerChannel& channel) const {
  const transport::Hello& hello = channel.hello();
  return Status(Code::kMismatch, "a connection from " + channel.address() + " claims to be rank " +
                                     std::to_string(hello.rank) + ", worker '" + printable(hello.worker_id) +
                                     "', which is not in this job");
}

// Only workers that have joined know the job's nonce. Until this worker has, too, claims cannot be told
// apart, and a few of each rank are kept; open() looks at them again. A worker's attempts to connect overlap;
// the one that it uses is known by its first message.
Status Mesh::check_claim(const ServerChannel& channel) const {
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

void Mesh::disconnect_stranger(ServerChannel& channel) {
  const Status why = not_in_job(channel);
  refusals_.note("they are not from workers of this job", why.message());
  incoming_.erase(&channel);
  drop_chunks(parked_, channel, why);
  drop_early(channel, why);
  channel.close();
}

std::string Mesh::member_name(int32_t rank) const {
  if (rank < 0 || rank >= size()) return "rank " + std::to_string(rank);
  const transport::MemberInfo& member = view_.members[rank];
  return "rank " + std::to_string(rank) + " (worker '" + member.worker_id + "' on host " + member.host +
         ", pid " + std::to_string(member.pid) + ")";
}

std::string Mesh::call_name(uint64_t call) {
  const uint32_t channel = channel_of(call);
  return "call " + std::to_string(call % kCallsOfAChannel) +
         (channel == 0 ? " of the session" : " of channel " + std::to_string(channel));
}

std::string Mesh::member_names(std::span<const int32_t> ranks) const {
  std::string text;
  for (int32_t rank : ranks) text += (text.empty() ? "" : ", ") + member_name(rank);
  return text;
}

std::string Mesh::host_of(int32_t rank) const {
  return rank >= 0 && rank < size() ? view_.members[rank].host : std::string();
}

Status Mesh::lost(int32_t rank, const Status& why) const {
  if (why.code() == Code::kAborted) return why;
  if (why.code() == Code::kCorrupted) {
    return Status(
               Code::kCorrupted,
               "the connection with " + member_name(rank) + " cannot be trusted: " + why.message() +
                   "; no value of a parameter was changed; start a new session, and have the network and the "
                   "machines checked if it happens again")
        .with_rank(rank, host_of(rank));
  }
  return Status(Code::kWorkerLost, member_name(rank) + " was lost: " + why.message())
      .with_rank(rank, host_of(rank));
}

Status Mesh::blame(int32_t rank, const Status& status) const {
  if (!is_break(status)) return status;
  if (left_[rank]) return has_closed(rank);
  return status.rank() >= 0 ? status : lost(rank, status);
}

bool Mesh::undecided(int32_t rank, const Status& status) const {
  return is_break(status) && !left_[rank] && !closed_;
}

Status Mesh::has_closed(int32_t rank) const {
  return Status(Code::kWorkerLost, member_name(rank) + " has closed its session")
      .with_rank(rank, host_of(rank));
}

// ---- sending

void Mesh::dial(int32_t rank) {
  transport::DialOptions dial;
  dial.hello = options_.hello;
  dial.token = options_.token;
  dial.deadline = loop().now() + options_.lease;
  dial.bulk_window = window_;
  std::weak_ptr<int> alive = alive_;
  dial.closed = [this, alive, rank](const Status& why) {
    if (!alive.expired() && !closed_) peer_gone(rank, lost(rank, why));
  };
  dial.refused = [this, alive, rank](uint64_t operation, const Status& why) {
    if (alive.expired() || closed_ || is_break(why)) return;
    if (Task* task = find(operation)) fail(*task, why);
  };
  outgoing_[rank].dial =
      RepeatedDial::start(network_, view_.members[rank].addresses, std::move(dial),
                          [this, alive, rank](Result<std::unique_ptr<ClientChannel>> result) {
                            if (alive.expired() || closed_) return;
                            Outgoing& out = outgoing_[rank];
                            out.dial = nullptr;
                            if (!result.ok())
                              return peer_gone(rank, unreachable(rank, result.status().message()));
                            out.channel = std::move(result).value();
                            for (Waiting& one : std::exchange(out.waiting, {})) one.use(*out.channel);
                          });
}

// Ends the dialling of a peer, if it is under way, and with it what waits for the connection.
void Mesh::give_up_dial(int32_t rank, const Status& why) {
  Outgoing& out = outgoing_[rank];
  if (out.dial) std::exchange(out.dial, nullptr)->cancel();
  for (Waiting& one : std::exchange(out.waiting, {})) {
    if (one.answered) loop().post([answered = std::move(one.answered), why] { answered(why); });
  }
}

// A connection to or from a peer has ended. The peer may have closed in good order, or because the job has
// failed. Then its goodbye (on its own connection) or the head's news was sent earlier, but may still be
// unread. So a quarter of a lease passes before the peer is reported as unreachable.
void Mesh::peer_gone(int32_t rank, const Status& status) {
  if (closed_) return;
  outgoing_[rank].broken = status;
  give_up_dial(rank, status);
  if (left_[rank]) return fail_tasks_that_need(rank);  // all that it has answered is in
  // Corruption is reported at once: no other worker knows a better reason.
  if (status.code() == Code::kCorrupted) return events_.on_peer_failure(rank, status);
  std::weak_ptr<int> alive = alive_;
  loop().schedule(loop().now() + options_.lease / 4, [this, alive, rank, status] {
    if (alive.expired() || closed_ || left_[rank]) return;
    if (departed_[rank] && is_connected(rank)) return;  // await_goodbye() limits the wait
    events_.on_peer_unreachable(rank, status);
  });
}

void Mesh::with_channel(int32_t rank, Waiting waiting) {
  Outgoing& out = outgoing_[rank];
  // Operations that need the peer fail, or end without it.
  if (!out.broken.ok() || closed_ || left_[rank]) return;
  if (out.channel) return waiting.use(*out.channel);
  out.waiting.push_back(std::move(waiting));
  if (!out.dial) dial(rank);
}

void Mesh::send(int32_t rank, BulkHeader header, std::span<const std::byte> data,
                std::function<void(const Status&)> done) {
  header.source = view_.rank;
  header.view = view_.view;
  note_sent(rank, header.operation);
  counters_[rank].sent.add(data.size());
  std::weak_ptr<int> alive = alive_;
  const uint64_t number = next_send_++;
  const auto entry = tasks_.find(header.operation);
  if (entry == tasks_.end()) return;  // it has failed
  entry->second.sends[number] = {rank, std::move(done)};
  auto finished = [this, alive, number, operation = header.operation](const Status& status) {
    if (alive.expired()) return;
    Task* task = find(operation);
    if (!task) return;
    if (!status.ok()) {
      if (!is_break(status)) fail(*task, status);  // a break is told by `closed`
      return;
    }
    const auto send = tasks_[operation].sends.extract(number);
    if (!send.empty()) send.mapped().done(status);
  };
  with_channel(rank, {header.operation, [header, data, finished](ClientChannel& channel) {
                        channel.send(header, data, finished);
                      }});
}

void Mesh::send_small(int32_t rank, BulkHeader header, std::span<const std::byte> data) {
  header.source = view_.rank;
  header.view = view_.view;
  note_sent(rank, header.operation);
  counters_[rank].sent.add(data.size());
  Outgoing& out = outgoing_[rank];
  if (out.channel && out.broken.ok() && !closed_) return out.channel->send_small(header, data, nullptr);
  with_channel(
      rank, {header.operation, [header, copy = std::vector<std::byte>(data.begin(), data.end())](
                                   ClientChannel& channel) { channel.send_small(header, copy, nullptr); }});
}

void Mesh::call(int32_t rank, Message message, transport::Time deadline,
                std::function<void(Result<Message>)> done) {
  auto answered = done ? std::move(done) : [](Result<Message>) {};
  if (!outgoing_[rank].broken.ok() || closed_ || left_[rank]) {
    const Status why = !outgoing_[rank].broken.ok() ? outgoing_[rank].broken : has_closed(rank);
    loop().post([answered, why] { answered(why); });
    return;
  }
  with_channel(rank, {0,
                      [message = std::move(message), deadline, answered](ClientChannel& channel) {
                        channel.call(message, deadline, answered);
                      },
                      answered});
}

void Mesh::send_object(int32_t rank, uint64_t put, uint64_t offset, std::span<const std::byte> data,
                       std::function<void(const Status&)> done) {
  BulkHeader header;
  header.view = view_.view;
  header.operation = object_operation(put);
  header.source = view_.rank;
  header.offset = offset;
  counters_[rank].sent.add(data.size());
  with_channel(rank, {header.operation, [header, data, done = std::move(done)](ClientChannel& channel) {
                        channel.send(header, data, done);
                      }});
}

void Mesh::revoke_object(uint64_t put) {
  const uint64_t operation = object_operation(put);
  for (Outgoing& out : outgoing_) {
    std::erase_if(out.waiting, [&](const Waiting& one) { return one.operation == operation; });
    if (out.channel) out.channel->revoke(operation);
  }
}

void Mesh::discard_object(uint64_t put) {
  const Status dropped(Code::kNotFound, "this worker does not fetch this object any more");
  bool whole = true;
  for (auto& [channel, incoming] : incoming_) {
    whole &= catch_bad_alloc([&, channel = channel] { channel->discard(object_operation(put), dropped); });
  }
  if (!whole) throw std::bad_alloc();
}

// ---- tasks

Task* Mesh::find(uint64_t operation) {
  auto it = tasks_.find(operation);
  return it == tasks_.end() ? nullptr : it->second.task.get();
}

template <typename Work>
auto Mesh::in_task(const Task& task, Work work) -> decltype(work()) {
  const uint64_t operation = task.operation();
  try {
    return work();
  } catch (const std::bad_alloc&) {
    if (auto entry = tasks_.find(operation); entry != tasks_.end()) entry->second.unsound = true;
    throw;
  }
}

Task* Mesh::add(std::unique_ptr<Task> owned, transport::Time deadline) {
  Task* task = owned.get();
  const uint64_t operation = task->operation();
  Entry& entry = tasks_[operation];
  entry.task = std::move(owned);
  return in_task(*task, [=, this] { return begin(task, deadline); });
}

Task* Mesh::begin(Task* task, transport::Time deadline) {
  const uint64_t operation = task->operation();
  Entry& entry = tasks_[operation];
  entry.begun = loop().now();
  entry.heard.assign(view_.members.size(), 0);
  if (deadline != transport::kNever) {
    entry.timer = loop().schedule(deadline, [this, operation] { deadline_passed(operation); });
  }
  if (auto early = failed_early_.find(operation); early != failed_early_.end()) {
    const Status cause = early->second;
    failed_early_.erase(early);
    end_with(operation, cause);
    return nullptr;
  }
  if (is_first(operation)) entry.sent_to.assign(view_.members.size(), 0);
  if (is_first(operation) || is_broadcast_root(task->shape(), view_.rank)) {
    entry.agreed.assign(view_.members.size(), 0);
    entry.to_agree = size() - 1;
  }
  {
    struct Starting {
      Entry*& current;
      Entry* outer;
      ~Starting() { current = outer; }
    } starting{starting_, std::exchange(starting_, &entry)};
    task->start();
  }
  if (find(operation) != task || !send_signature(*task) || settle(operation)) return nullptr;
  auto parked = parked_.find(operation);
  if (parked != parked_.end()) {
    auto chunks = std::move(parked->second);
    parked_.erase(parked);
    for (Parked& chunk : chunks) {
      // It may have come before the view did.
      if (chunk.header.view != view_.view) {
        chunk.receipt->finish(Status(Code::kMismatch, "a chunk from rank " + std::to_string(chunk.source) +
                                                          " in view " + std::to_string(chunk.header.view) +
                                                          ", which is none of this job's"));
        continue;
      }
      take(chunk.source, chunk.channel, chunk.header, std::move(chunk.receipt));
    }
  }
  // A peer that has left may have done its part before.
  for (int32_t rank = 0; rank < size() && find(operation); ++rank) {
    if (!left_[rank]) continue;
    leave_out(rank);
    fail_tasks_that_need(rank);
  }
  return find(operation);
}

void Mesh::ended(Task& task, const Status& status) {
  const uint64_t operation = task.operation();
  auto node = tasks_.extract(operation);
  if (node.empty()) return;
  for (transport::TimerId timer : {node.mapped().timer, node.mapped().verdict}) {
    if (timer) loop().cancel(timer);
  }
  disputes_.erase(operation);
  Task& last = *node.mapped().task;
  const Entry* const ended = &ended_tasks_.insert(std::move(node))->second;
  const auto done = std::move(last.done_);
  // Each part runs even if another runs out of memory. Once `done` is called, nothing uses the host's buffers
  // any more.
  bool whole = true;
  if (!status.ok()) {
    (void)catch_bad_alloc([&] { end_waits(*ended); });
    for (Outgoing& out : outgoing_) {
      std::erase_if(out.waiting, [&](const Waiting& one) { return one.operation == operation; });
      if (out.channel) out.channel->revoke(operation);
    }
    for (auto& [channel, incoming] : incoming_)
      whole &= catch_bad_alloc([&, channel = channel] { channel->discard(operation, status); });
    whole &= catch_bad_alloc([&] { last.drop_chunks(status); });
    whole &= catch_bad_alloc([&] { remember_failure(operation, status); });
    drop_parked(operation, status);
  }
  whole &= catch_bad_alloc([&] { ended_.insert(operation); });
  whole &= catch_bad_alloc([&] {  // destroyed after the caller's stack is gone
    if (destruction_posted_) return;
    loop().post([this, alive = std::weak_ptr(alive_)] {
      if (alive.expired()) return;
      destruction_posted_ = false;
      (void)std::exchange(ended_tasks_, {});
    });
    destruction_posted_ = true;
  });
  if (done) done(status);
  if (!whole) throw std::bad_alloc();
}

void Mesh::remember_failure(uint64_t operation, const Status& cause) {
  failed_.try_emplace(operation, cause);
  if (failed_.size() > kRememberedFailures) failed_.erase(failed_.begin());
}

bool Mesh::has_ended(uint64_t operation) const {
  const uint64_t call = call_of(operation);
  return call < calls_ended_below_[channel_of(call)] || calls_ended_.count(call) > 0 ||
         ended_.count(operation) > 0;
}

const Status* Mesh::failure_of(uint64_t operation) const {
  if (auto it = failed_.find(operation); it != failed_.end()) return &it->second;
  const uint64_t call = call_of(operation);
  auto it = failed_.lower_bound(Mesh::operation(call, 0));
  return it != failed_.end() && it->first < Mesh::operation(call + 1, 0) ? &it->second : nullptr;
}

void Mesh::hear(Entry& entry, int32_t rank) {
  if (!std::exchange(entry.heard[rank], 1)) end_wait(entry, rank, false);
}

// Several operations may wait for a peer at once. The time counts once, when the first of these waits ends.
void Mesh::end_wait(const Entry& entry, int32_t rank, bool failed) {
  transport::Time begun = entry.begun;
  for (const auto& [operation, other] : tasks_) {
    if (!other.heard[rank]) begun = std::min(begun, other.begun);
  }
  begun = std::max(begun, waited_until_[rank]);
  const transport::Time now = loop().now();
  waited_until_[rank] = now;
  counters_[rank].wait.add(now - begun);
  if (options_.trace && now - begun >= kTracedWait) {
    options_.trace->record(
        {metrics::Track::kPeer, failed, 0, static_cast<uint32_t>(rank), "wait", 0, 0, begun, now});
  }
}

void Mesh::end_waits(const Entry& entry) {
  for (int32_t rank : missing(entry)) {
    if (!entry.heard[rank]) end_wait(entry, rank, true);
  }
}

void Mesh::give(Task& task, int32_t source, const BulkHeader& header,
                std::unique_ptr<transport::BulkReceipt> receipt) {
  const uint64_t operation = task.operation();
  hear(tasks_[operation], source);
  in_task(task, [&] { task.on_chunk(task.group().place_of(source), header, std::move(receipt)); });
  has_agreed(operation, source);
}

// A peer may itself be blocked, as in a ring. Asks every peer whether it has begun this operation; the error
// names those that have not. A peer that receives the question ends the operation with a timeout, too.
void Mesh::deadline_passed(uint64_t operation) {
  Task* task = find(operation);
  if (!task || tasks_[operation].asked) return;
  Entry& entry = tasks_[operation];
  if (!entry.disagreement.ok()) return fail(*task, Status(entry.disagreement));
  entry.asked = true;
  if (entry.timer) loop().cancel(entry.timer);
  entry.timer = loop().schedule(loop().now() + kAsking, [this, operation] {
    if (find(operation)) tasks_[operation].timer = 0;
    time_out(operation);
  });
  const transport::OperationFailed question{
      view_.view, view_.rank, operation, false,
      Status(Code::kWaitTimeout, task->name() + ": the deadline has passed")};
  std::weak_ptr<int> alive = alive_;
  for (int32_t rank = 0; rank < size(); ++rank) {
    if (rank == view_.rank || left_[rank]) continue;
    ++entry.unanswered;
    call(rank, question, loop().now() + kAsking,
         [this, alive, operation, rank](const Result<Message>& answer) {
           if (alive.expired() || !find(operation)) return;
           Entry& entry = tasks_[operation];
           if (answer.ok()) hear(entry, rank);
           if (!answer.ok() && answer.status().code() != Code::kTimeout) entry.not_begun.push_back(rank);
           if (--entry.unanswered == 0) time_out(operation);
         });
  }
  if (entry.unanswered == 0) time_out(operation);
}

void Mesh::time_out(uint64_t operation) {
  Task* task = find(operation);
  if (!task) return;
  const Entry& entry = tasks_[operation];
  // A peer that answers "not begun" holds up the others. A peer that does not answer may only be slow.
  std::vector<int32_t> missing = entry.not_begun, silent;
  std::sort(missing.begin(), missing.end());
  for (int32_t rank = 0; rank < size(); ++rank) {
    if (rank == view_.rank || left_[rank] || entry.heard[rank]) continue;
    if (!std::binary_search(missing.begin(), missing.end(), rank)) silent.push_back(rank);
  }
  if (missing.empty()) missing = std::exchange(silent, {});
  if (missing.empty()) missing = this->missing(entry);
  fail(*task,
       too_late(task->name() + " did not end", task->limit(), missing, silent).with_operation(task->name()));
}

Status Mesh::too_late(const std::string& what, const std::string& limit, std::span<const int32_t> missing,
                      std::span<const int32_t> silent) const {
  const int32_t first = missing.empty() ? -1 : missing.front();
  const std::string key = limit.substr(0, limit.find(' '));
  std::string waits = "; all peers have sent their data, but this worker has not finished its part; raise ";
  if (!missing.empty()) {
    waits = "; still waiting for " + member_names(missing) +
            (silent.empty() ? "" : "; no answer yet from " + member_names(silent)) +
            "; check these workers, or raise ";
  }
  return Status(Code::kTimeout, what + " within " + limit + waits + key).with_rank(first, host_of(first));
}

void Mesh::fail(Task& task, const Status& cause) {
  tell_peers(task.operation(), false, cause);
  task.end(cause);
}

void Mesh::drop(uint64_t first, uint64_t last) {
  const Status dropped(Code::kClosed, "the step begins again without a worker that has left");
  for (auto it = tasks_.lower_bound(first); it != tasks_.end() && it->first < last;
       it = tasks_.lower_bound(first)) {
    it->second.task->end(dropped);
  }
  remember_failure(first, dropped);
  for (uint64_t operation = first; operation < last; ++operation) {
    ended_.insert(operation);
    drop_parked(operation, dropped);
  }
}

void Mesh::end_call(uint64_t call, const Status& cause) {
  const uint64_t first = operation(call, 0), next = operation(call + 1, 0);
  if (!cause.ok()) {
    for (auto it = tasks_.lower_bound(first); it != tasks_.end() && it->first < next;
         it = tasks_.lower_bound(first)) {
      it->second.task->end(cause);
    }
    remember_failure(first, cause);
  }
  uint64_t& below = calls_ended_below_[channel_of(call)];
  calls_ended_.insert(call);
  while (calls_ended_.erase(below) > 0) ++below;
  ended_.erase(ended_.lower_bound(first), ended_.lower_bound(next));
  failed_early_.erase(failed_early_.lower_bound(first), failed_early_.lower_bound(next));
  std::vector<Parked> unused;
  for (auto it = parked_.lower_bound(first); it != parked_.end() && it->first < next;
       it = parked_.erase(it)) {
    std::move(it->second.begin(), it->second.end(), std::back_inserter(unused));
  }
  for (Parked& chunk : unused) chunk.receipt->finish(refusal(chunk.source, chunk.header));
}

Status Mesh::refusal(int32_t source, const BulkHeader& header) const {
  if (const Status* failure = failure_of(header.operation)) return *failure;
  return Status(Code::kMismatch,
                "workers disagree: rank " + std::to_string(source) + " calls " + describe(header) +
                    ", which rank " + std::to_string(view_.rank) +
                    " has ended without it; all workers must call the same operations in the same order")
      .with_rank(view_.rank, host_of(view_.rank));
}

void Mesh::tell_peers(uint64_t operation, bool session, const Status& cause) {
  transport::OperationFailed message{view_.view, view_.rank, operation, session, cause};
  for (int32_t rank = 0; rank < size(); ++rank) {
    // A lost worker without a connection would not receive it, and closing would wait for the end of the
    // dialling.
    const bool out_of_reach =
        cause.code() == Code::kWorkerLost && rank == cause.rank() && !outgoing_[rank].channel;
    if (rank == view_.rank || left_[rank] || out_of_reach) continue;
    call(rank, message, loop().now() + options_.lease, nullptr);
  }
}

void Mesh::tell_failure(const Status& cause) {
  if (opened_) tell_peers(0, true, cause);
}

void Mesh::fail_session(const Status& cause) {
  while (!tasks_.empty()) tasks_.begin()->second.task->end(cause);
  // Data of operations that have ended here may still wait for a connection. Nobody needs it any more.
  for (Outgoing& out : outgoing_) {
    std::erase_if(out.waiting, [](const Waiting& one) { return one.operation != 0; });
  }
  auto parked = std::move(parked_);
  parked_.clear();
  for (auto& [operation, chunks] : parked) {
    for (Parked& chunk : chunks) chunk.receipt->finish(cause);
  }
}

bool Mesh::alone() const { return opened_ && std::count(left_.begin(), left_.end(), 1) == size() - 1; }

void Mesh::told_left(int32_t rank) {
  if (rank < 0 || rank >= size() || left_[rank]) return;
  departed_[rank] = 1;
  if (is_connected(rank)) return await_goodbye(rank);
  events_.on_peer_left(rank);
}

bool Mesh::is_connected(int32_t rank) const {
  return std::any_of(incoming_.begin(), incoming_.end(),
                     [rank](const auto& item) { return item.second.rank == rank; });
}

// The head knows that this peer left, but its goodbye to this worker has not arrived. Waits two leases for
// it: after a cut that is shorter than a lease, TCP may wait almost as long again. The peer's machine may
// have died in between, and the head no longer watches a worker that has left.
void Mesh::await_goodbye(int32_t rank) {
  const transport::Time due = loop().now() + 2 * options_.lease;
  std::weak_ptr<int> alive = alive_;
  loop().schedule(due, [this, alive, rank, due] {
    if (alive.expired() || closed_ || left_[rank] || !is_connected(rank)) return;
    if (loop().now() - due > options_.lease / 2) return await_goodbye(rank);  // this process was stopped
    const Status late(Code::kWorkerLost,
                      "it has left the job, but its goodbye has not arrived within two leases");
    events_.on_peer_unreachable(rank, lost(rank, late));
  });
}

// The head notices a lost worker, unless the head itself has left in good order. But only this worker notices
// that its connection to a peer is cut. This function runs every 1/16 of heartbeat_interval. It probes a peer
// when operations have waited for it for 3/16 of heartbeat_interval, and again 3/16 after each answer. The
// limit of a probe is the lease minus 5/16, so a probe ends at most a lease after the wait began or the last
// probe was answered. It outlasts a cut that is shorter than `lease` minus `heartbeat_interval`.
void Mesh::watch_peers() {
  if (closed_) return;
  const transport::Time now = loop().now();
  std::map<int32_t, transport::Time> needed;
  for (const auto& [operation, entry] : tasks_) {
    for (int32_t rank : missing(entry)) {
      const auto known = waited_for_.find(rank);
      needed[rank] = known == waited_for_.end() ? now : known->second;
    }
  }
  waited_for_ = std::move(needed);
  const transport::Duration look = options_.heartbeat_interval / 16;
  for (const auto& [rank, since] : waited_for_) {
    if (now - since >= 3 * look && !left_[rank] && !departed_[rank] && !probed_[rank])
      probe(rank, options_.lease - 5 * look);
  }
  std::weak_ptr<int> alive = alive_;
  loop().schedule(now + look, [this, alive] {
    if (!alive.expired()) watch_peers();
  });
}

void Mesh::probe(int32_t rank, transport::Duration limit) {
  probed_[rank] = 1;
  const transport::Time due = loop().now() + limit;
  std::weak_ptr<int> alive = alive_;
  options_.probe(view_.members[rank], due, [this, alive, rank, limit, due](const Status& answer) {
    if (alive.expired() || closed_) return;
    probed_[rank] = 0;
    if (const auto waited = waited_for_.find(rank); waited != waited_for_.end())
      waited->second = loop().now();
    if (answer.ok() || left_[rank] || departed_[rank]) return;
    if (loop().now() - due > options_.lease / 2) return probe(rank, limit);  // this process was stopped
    events_.on_peer_unreachable(rank, unreachable(rank, answer.message()));
  });
}

Status Mesh::unreachable(int32_t rank, const std::string& why) const {
  const auto& addresses = view_.members[rank].addresses;
  const std::string address = addresses.empty() ? "no address" : addresses.front();
  const char* causes = is_loopback(address)
                           ? "; it is stopped, or it runs in another container, where a loopback address "
                             "does not lead; in that case set `interface` or `listen` to a network that "
                             "both workers share"
                           : "; it is stopped or cut off, or a firewall is between them";
  return Status(Code::kWorkerLost, member_name(view_.rank) + " cannot reach " + member_name(rank) + " at " +
                                       address + ": " + why + causes)
      .with_rank(rank, host_of(rank));
}

// The goodbye came over the peer's connection. The answers to this worker's chunks come over this worker's
// connection, and are all in when that one ends. Normally that is at once; a peer that is stopped just then
// delays it by a lease at most.
void Mesh::peer_left(int32_t rank) {
  if (rank < 0 || rank >= size() || left_[rank]) return;
  left_[rank] = 1;
  leave_out(rank);
  answer_for(rank);
  const Outgoing& out = outgoing_[rank];
  if (!out.channel) give_up_dial(rank, has_closed(rank));
  if (!out.broken.ok() || !out.channel) return fail_tasks_that_need(rank);
  std::weak_ptr<int> alive = alive_;
  loop().schedule(loop().now() + options_.lease, [this, alive, rank] {
    if (!alive.expired() && !closed_) fail_tasks_that_need(rank);
  });
}

// Removes a departed worker from the first operations of open calls that can go on without it, such as step
// headers.
void Mesh::leave_out(int32_t rank) {
  std::vector<uint64_t> open;
  for (const auto& [operation, entry] : tasks_) {
    if (is_first(operation) && left_before(rank, operation)) open.push_back(operation);
  }
  for (uint64_t operation : open) {
    Task* task = find(operation);
    if (task && in_task(*task, [&] { return task->leave_out(task->group().place_of(rank)); }))
      has_agreed(operation, rank);
  }
}

// Returns whether a departed worker has completed the start or step that the task belongs to, as its goodbye
// says. It has then received everything that was sent to it for these; only its last answers may be lost.
bool Mesh::has_made(int32_t rank, const Task& task) const {
  const Kind kind = static_cast<Kind>(task.shape().kind);
  const bool is_of_training = kind == Kind::kStart || kind == Kind::kHeader || kind == Kind::kBucket;
  return left_[rank] && is_of_training && call_of(task.operation()) < first_call_not_made_[rank];
}

void Mesh::answer_for(int32_t rank) {
  std::vector<std::pair<uint64_t, std::function<void(const Status&)>>> answered;
  for (auto& [operation, entry] : tasks_) {
    if (!has_made(rank, *entry.task)) continue;
    for (auto& [number, send] : entry.sends) {
      if (send.rank == rank) answered.emplace_back(operation, std::move(send.done));
    }
    std::erase_if(entry.sends, [rank](const auto& send) { return send.second.rank == rank; });
    // Else a late answer would call `done` twice.
    if (outgoing_[rank].channel) outgoing_[rank].channel->revoke(operation);
  }
  for (auto& [operation, done] : answered) {
    if (find(operation)) done({});
  }
}

void Mesh::fail_tasks_that_need(int32_t rank) {
  std::vector<uint64_t> stuck;
  for (auto& [operation, entry] : tasks_) {
    const auto needed = missing(entry);
    const bool needs = std::find(needed.begin(), needed.end(), rank) != needed.end();
    if (needs && !has_made(rank, *entry.task)) stuck.push_back(operation);
  }
  for (uint64_t operation : stuck) {
    Task* task = find(operation);  // the failure of one may have ended another
    if (!task) continue;
    fail(*task,
         Status(Code::kWorkerLost, member_name(rank) + " closed its session while " + task->name() +
                                       " needs it; all workers must make the same calls before they close")
             .with_rank(rank, host_of(rank))
             .with_operation(task->name()));
  }
}

void Mesh::close(const Status& cause, uint64_t steps, const std::vector<uint64_t>& digests,
                 uint64_t first_call_not_made) {
  if (closed_) return;
  fail_session(cause.ok() ? Status(Code::kClosed, "the session was closed") : cause);
  for (int32_t rank = 0; rank < static_cast<int32_t>(outgoing_.size()); ++rank) {
    Outgoing& out = outgoing_[rank];
    if (!out.channel || !out.broken.ok()) continue;
    out.channel->call(transport::Goodbye{view_.view, view_.rank, cause, steps, digests, first_call_not_made},
                      transport::kNever, [](Result<Message>) {});
    out.channel->close(true);
  }
  for (Outgoing& out : outgoing_) {
    if (out.dial) std::exchange(out.dial, nullptr)->cancel();
  }
  closed_ = true;
}

bool Mesh::sent() const {
  return std::all_of(outgoing_.begin(), outgoing_.end(),
                     [](const Outgoing& out) { return out.waiting.empty(); });
}

void Mesh::drop_channels() {
  closed_ = true;
  ended_tasks_.clear();
  parked_.clear();
  outgoing_.clear();
}

// ---- receiving

Status Mesh::on_open(ServerChannel& channel) {
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
void Mesh::note_use(ServerChannel& channel) {
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

transport::BulkSink* Mesh::on_bulk(ServerChannel& channel, const BulkHeader& header, size_t nbytes) {
  auto it = incoming_.find(&channel);
  if (it == incoming_.end()) return nullptr;  // refused once it is in
  note_use(channel);
  if (!opened_ || header.view != view_.view || header.source != it->second.rank || !is_peer(header.source))
    return nullptr;
  transport::BulkSink* sink = nullptr;
  if (is_object(header.operation)) {
    sink = events_.on_object_data(header.operation - object_operation(0), header, nbytes);
  } else if (header.phase != kSignaturePhase) {
    // Chunks that wait for their turn stay in order: none may overtake them.
    Task* task = match(header.source, header);
    if (task)
      sink = in_task(*task,
                     [&] { return task->on_bulk(task->group().place_of(header.source), header, nbytes); });
  }
  if (sink) counters_[header.source].received.add(nbytes);  // else when it is in
  return sink;
}

void Mesh::on_bulk_end(ServerChannel& channel, const BulkHeader& header,
                       std::unique_ptr<transport::BulkReceipt> receipt) {
  auto it = incoming_.find(&channel);
  if (it == incoming_.end() || closed_)
    return receipt->finish(Status(Code::kClosed, "the session is closed"));
  note_use(channel);
  const int32_t source = it->second.rank;
  if (header.source != source || (opened_ && (header.view != view_.view || !is_peer(source)))) {
    return receipt->finish(Status(Code::kMismatch, "a chunk from rank " + std::to_string(header.source) +
                                                       " in view " + std::to_string(header.view) +
                                                       " came over the connection of rank " +
                                                       std::to_string(source) + "; this worker is in view " +
                                                       std::to_string(view_.view)));
  }
  if (opened_) counters_[source].received.add(receipt->data().size());
  if (is_object(header.operation)) {
    if (!opened_) return receipt->finish(Status(Code::kState, "this worker has not asked for an object yet"));
    return events_.on_object_data_end(header.operation - object_operation(0), header, std::move(receipt));
  }
  take(source, &channel, header, std::move(receipt));
}

void Mesh::take(int32_t source, const ServerChannel* channel, const BulkHeader& header,
                std::unique_ptr<transport::BulkReceipt> receipt) {
  const bool is_signature = header.phase == kSignaturePhase;
  if (opened_ && is_signature && !(receipt = take_dispute(source, header, std::move(receipt)))) return;
  Task* task = opened_ ? match(source, header) : nullptr;
  if (task && is_signature) {
    receipt->finish({});
    return has_agreed(header.operation, source);
  }
  if (task) return give(*task, source, header, std::move(receipt));
  if (has_ended(header.operation)) return receipt->finish(refusal(source, header));
  // A worker of dsgd never sends so much before the job begins.
  if (!opened_ && bytes_of(parked_) + receipt->data().size() > options_.receive_memory) {
    return receipt->finish(Status(
        Code::kLimit, "the chunks that came before the job began would take more than receive_memory"));
  }
  parked_[header.operation].push_back({source, channel, header, std::move(receipt)});
}

void Mesh::failure_from_peer(const transport::OperationFailed& message) {
  if (message.cause.ok() || !is_peer(message.rank)) return;  // not what a worker of dsgd sends
  if (message.session) {
    events_.on_peer_failure(message.cause.rank() >= 0 ? message.cause.rank() : message.rank, message.cause);
    return;
  }
  // A question (see OperationFailed). The answer to it has already said whether the operation has begun here.
  if (message.cause.code() == Code::kWaitTimeout) return deadline_passed(message.operation);
  // A worker that leaves tells why. This worker passes it on, since its own goodbye may reach a third one
  // earlier.
  const bool leaver = message.cause.code() == Code::kWorkerLost && message.cause.rank() == message.rank;
  if (leaver && !has_ended(message.operation)) tell_peers(message.operation, false, message.cause);
  end_with(message.operation, message.cause);
}

// A failure that all workers share ends the operation here, too, whether it has begun or not.
void Mesh::end_with(uint64_t operation, const Status& cause) {
  if (Task* task = find(operation))
    return task->end(cause.operation().empty() ? Status(cause).with_operation(task->name()) : cause);
  if (has_ended(operation)) return;
  failed_early_.insert_or_assign(operation, cause);
  if (failed_early_.size() > kRememberedFailures) failed_early_.erase(std::prev(failed_early_.end()));
  disputes_.erase(operation);
  drop_parked(operation, cause);
}

void Mesh::drop_parked(uint64_t operation, const Status& cause) {
  if (auto parked = parked_.extract(operation)) {
    for (Parked& chunk : parked.mapped()) chunk.receipt->finish(cause);
  }
}

void Mesh::drop_early(const ServerChannel& channel, const Status& cause) {
  for (EarlyObject& early : early_objects_) {
    if (early.channel == &channel) early.respond(cause);
  }
  std::erase_if(early_objects_, [&](const EarlyObject& early) { return early.channel == &channel; });
}

void Mesh::on_call(ServerChannel& channel, Message request, transport::Responder respond) {
  note_use(channel);
  if (auto* failed = std::get_if<transport::OperationFailed>(&request)) {
    const bool begun =
        opened_ && (failed->session || find(failed->operation) || has_ended(failed->operation));
    if (begun) {
      respond(Message(transport::Empty{}));
    } else {
      respond(
          Status(Code::kState, "this worker has not begun operation " + std::to_string(failed->operation)));
    }
    if (opened_ && failed->view == view_.view) failure_from_peer(*failed);
  } else if (auto* part = std::get_if<transport::ObjectPart>(&request)) {
    // The answer depends on this worker's rank, which is known only once the mesh is open.
    if (!opened_) return early_objects_.push_back({&channel, std::move(*part), std::move(respond)});
    if (part->view != view_.view || !is_peer(part->rank)) {
      return respond(Status(Code::kMismatch, "an object from rank " + std::to_string(part->rank) +
                                                 " in view " + std::to_string(part->view) +
                                                 ", which is none of this job's"));
    }
    events_.on_object(std::move(*part), std::move(respond));
  } else if (auto* goodbye = std::get_if<transport::Goodbye>(&request)) {
    if (auto it = incoming_.find(&channel); it != incoming_.end()) {
      it->second.goodbye = true;
      it->second.cause = goodbye->cause;
      it->second.first_call_not_made = goodbye->first_call_not_made;
      if (opened_ && is_peer(it->second.rank))
        events_.on_goodbye(it->second.rank, goodbye->steps, std::move(goodbye->digests));
    }
    respond(Message(transport::Empty{}));
  } else {
    respond(Status(Code::kUnsupported, "a worker does not answer this message; only the head does"));
  }
}

void Mesh::on_close(ServerChannel& channel, const Status& why) {
  auto node = incoming_.extract(&channel);
  if (node.empty() || closed_) return;
  const int32_t rank = node.mapped().rank;
  if (!opened_) {  // their rank can no longer be checked
    drop_early(channel, why);
    return drop_chunks(parked_, channel, why);
  }
  if (!is_peer(rank)) return;
  if (left_[rank]) return;
  // An attempt to connect that its worker has given up. If the worker is lost, the head notices.
  if (!node.mapped().used) {
    if (departed_[rank] && !is_connected(rank)) events_.on_peer_left(rank);
    return;
  }
  // The peer's cause may arrive before the head's news.
  if (const Status& cause = node.mapped().cause; !cause.ok()) {
    return events_.on_peer_failure(cause.rank() >= 0 ? cause.rank() : rank, cause);
  }
  if (node.mapped().goodbye) {
    first_call_not_made_[rank] = node.mapped().first_call_not_made;
    return events_.on_peer_left(rank);
  }
  peer_gone(
      rank,
      lost(rank, why.ok() ? Status(Code::kWorkerLost, "its connection was closed without a goodbye") : why));
}

}  // namespace dsgd

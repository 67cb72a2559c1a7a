#include "core/mesh/incoming_connections.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/describe.h"
#include "core/base/repeated_dial.h"
#include "core/base/text.h"
#include "transport/schema/codec.h"

namespace dsgd {

using transport::BulkHeader;
using transport::ServerChannel;

namespace {
constexpr size_t kClaimsOfARank = 4;  // connections of one rank that may wait for the view
// Memory of an early chunk or message besides its data: Early, and the call that waits for its answer.
constexpr size_t kEarlyBytes = 1024;
static_assert(2 * sizeof(IncomingConnections::Early) <= kEarlyBytes);
}  // namespace

IncomingConnections::IncomingConnections(transport::Loop& loop, const PeerOptions& options,
                                         const Members& members, std::shared_ptr<Log> log)
    : options_(options), members_(members), log_(std::move(log)), refusals_(loop, log_) {}

void IncomingConnections::open() {
  opened_ = true;
  for (ServerChannel* channel : connections_of_strangers()) disconnect_stranger(*channel);
  update_ranks();
}

void IncomingConnections::change_view() {
  for (ServerChannel* channel : connections_of_strangers())
    close(*channel, Status(Code::kEvicted, "this worker goes on without the sender"));
  update_ranks();
}

void IncomingConnections::update_ranks() {
  for (auto& [channel, connection] : connections_) set_rank(channel->hello(), &connection);
}

void IncomingConnections::set_rank(const transport::Hello& hello, Connection* connection) const {
  connection->rank = rank_of(hello);
  connection->of_member = connection->of_member || connection->rank >= 0;
}

// ---- admission

Status IncomingConnections::admit(ServerChannel& channel) {
  Status refused = opened_ ? check_connection(channel) : check_early_connection(channel);
  if (refused.ok()) {
    Connection& connection = connections_[&channel];
    connection = {.number = next_number_++, .rank = channel.hello().rank};
    if (opened_) set_rank(channel.hello(), &connection);
  } else {
    // A worker opens several connections at once; one is enough.
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

// By the worker's id: its rank may have been that of another view.
int32_t IncomingConnections::rank_of(const transport::Hello& hello) const {
  const transport::JoinReply& view = members_.view();
  if (hello.job_nonce != view.job_nonce) return -1;
  const int32_t rank = dsgd::rank_of(view.members, hello.worker_id);
  return members_.is_peer(rank) ? rank : -1;
}

// A worker of a later view, which the head has not told this worker yet; or one that will join in some later
// view. The latter names Hello::kLaterView, so it would be a learner also after its eviction.
bool IncomingConnections::is_learner(const transport::Hello& hello) const {
  return options_.views_change && hello.job_nonce == members_.view().job_nonce &&
         hello.view > members_.view().view && dsgd::rank_of(members_.view().members, hello.worker_id) < 0;
}

template <typename Chosen>
std::vector<ServerChannel*> IncomingConnections::connections(Chosen chosen) const {
  std::vector<ServerChannel*> found;
  for (const auto& [channel, connection] : connections_) {
    if (chosen(*channel, connection)) found.push_back(channel);
  }
  std::sort(found.begin(), found.end(), [this](ServerChannel* a, ServerChannel* b) {
    return connections_.at(a).number < connections_.at(b).number;
  });
  return found;
}

std::vector<ServerChannel*> IncomingConnections::connections_of_strangers() const {
  return connections([this](ServerChannel& channel, const Connection& connection) {
    return rank_of(channel.hello()) < 0 && (connection.of_member || !is_learner(channel.hello()));
  });
}

Status IncomingConnections::not_in_job(const ServerChannel& channel) const {
  const transport::Hello& hello = channel.hello();
  return Status(Code::kMismatch, "a connection from " + channel.address() + " claims to be rank " +
                                     std::to_string(hello.rank) + ", worker '" + printable(hello.worker_id) +
                                     "', which is not in this job");
}

// Until this worker knows the job's nonce, claims cannot be told apart. A few of each rank are kept; open()
// checks them again.
Status IncomingConnections::check_early_connection(const ServerChannel& channel) const {
  const transport::Hello& hello = channel.hello();
  if (hello.rank < 0 || hello.rank >= options_.max_workers || hello.worker_id == options_.hello.worker_id)
    return not_in_job(channel);
  const auto same_rank = [&](ServerChannel&, const Connection& other) { return other.rank == hello.rank; };
  return check_others(channel, connections(same_rank), kClaimsOfARank);
}

// A worker's attempts to connect overlap; the one that it uses is known by its first message.
Status IncomingConnections::check_connection(const ServerChannel& channel) const {
  const transport::Hello& hello = channel.hello();
  if (rank_of(hello) < 0 && !is_learner(hello)) return not_in_job(channel);
  const auto same_id = [&](ServerChannel& other, const Connection&) {
    return other.hello().worker_id == hello.worker_id;
  };
  return check_others(channel, connections(same_id), RepeatedDial::kAttempts);
}

Status IncomingConnections::check_others(const ServerChannel& channel,
                                         const std::vector<ServerChannel*>& others, size_t most) const {
  const transport::Hello& hello = channel.hello();
  const std::string rank = std::to_string(hello.rank);
  const bool in_use = std::any_of(others.begin(), others.end(), [&](ServerChannel* other) {
    return other->hello().worker_id == hello.worker_id && other->hello().job_nonce == hello.job_nonce &&
           connections_.at(other).used;
  });
  if (in_use) {
    return Status(Code::kExists, "a connection from " + channel.address() + " claims to be rank " + rank +
                                     ", which is connected already; each worker has one connection to each "
                                     "other");
  }
  if (others.size() < most) return {};
  // kUnreachable: another attempt may succeed.
  return Status(Code::kUnreachable, "a connection from " + channel.address() +
                                        " was refused: too many connections claim to be rank " + rank);
}

void IncomingConnections::disconnect_stranger(ServerChannel& channel) {
  const Status why = not_in_job(channel);
  refusals_.note("they are not from workers of this job", why.message());
  close(channel, why);
}

void IncomingConnections::close(ServerChannel& channel, const Status& why) {
  connections_.erase(&channel);
  drop_early(channel, why);
  channel.close();
}

// ---- admitted connections

IncomingConnections::Connection* IncomingConnections::find(ServerChannel& channel) {
  const auto found = connections_.find(&channel);
  return found == connections_.end() ? nullptr : &found->second;
}

std::optional<IncomingConnections::Connection> IncomingConnections::remove(ServerChannel& channel) {
  drop_early(channel, Status(Code::kIo, "the connection has ended"));
  auto node = connections_.extract(&channel);
  return node.empty() ? std::nullopt : std::optional(std::move(node.mapped()));
}

void IncomingConnections::note_use(ServerChannel& channel) {
  Connection* const used = find(channel);
  if (!used || std::exchange(used->used, true) || !opened_) return;
  const auto is_other = [&](ServerChannel& other, const Connection& connection) {
    return &other != &channel && connection.rank == used->rank &&
           other.hello().worker_id == channel.hello().worker_id;
  };
  for (ServerChannel* other : connections(is_other))
    close(*other, Status(Code::kExists, "the sender uses another connection"));
}

bool IncomingConnections::is_connected(int32_t rank) const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [rank](const auto& item) { return item.second.rank == rank; });
}

void IncomingConnections::discard(uint64_t operation, const Status& why) {
  for (auto& [channel, connection] : connections_) channel->discard(operation, why);
}

// ---- early chunks and messages

// The windows of the peers, which receive_memory holds, count the data of chunks only.
void IncomingConnections::keep(ServerChannel& channel, const BulkHeader& header,
                               std::unique_ptr<transport::BulkReceipt> receipt) {
  const size_t nbytes = std::max(receipt->data().size(), kEarlyBytes);
  keep({&channel, nbytes, header, std::move(receipt)});
}

void IncomingConnections::keep(ServerChannel& channel, transport::Message message,
                               transport::Responder respond) {
  const size_t nbytes = transport::encode(message).size() + kEarlyBytes;
  keep({&channel, nbytes, {}, nullptr, std::move(message), std::move(respond)});
}

// A correct worker never sends more than the limit before the receiver knows the view.
void IncomingConnections::keep(Early early) {
  if (early_bytes_ + early.nbytes > options_.receive_memory) {
    return early.reject(Status(Code::kLimit,
                               "the chunks and messages that came before their view was known would take "
                               "more than receive_memory"));
  }
  early_bytes_ += early.nbytes;
  early_.push_back(std::move(early));
}

std::vector<IncomingConnections::Early> IncomingConnections::take_early() {
  early_bytes_ = 0;
  return std::exchange(early_, {});
}

void IncomingConnections::drop_early(const ServerChannel& channel, const Status& why) {
  for (Early& early : early_) {
    if (early.channel != &channel) continue;
    early_bytes_ -= early.nbytes;
    early.reject(why);
  }
  std::erase_if(early_, [&](const Early& early) { return early.channel == &channel; });
}

void IncomingConnections::drop_early(const Status& why) {
  while (!early_.empty()) drop_early(*early_.front().channel, why);
}

}  // namespace dsgd

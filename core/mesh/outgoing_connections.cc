#include "core/mesh/outgoing_connections.h"

#include <algorithm>
#include <string>

#include "core/base/channels.h"
#include "core/mesh/channels.h"

namespace dsgd {

using transport::BulkHeader;
using transport::ClientChannel;
using transport::Message;

namespace {

// Chunks of 64 KiB were 2 to 3 times slower; chunks above 1 MiB were not faster.
constexpr size_t kLargestChunk = 1 << 20;
constexpr size_t kSmallestChunk = 2048;
constexpr size_t kChunksInWindow = 4;
constexpr size_t kLargestSmallWindow = 1 << 20;
// Largest number of operations for which a peer may have unanswered chunks at once: it may be kOpenTasks
// buckets ahead, and each may have an operation for its copies (StateCopies::send_means).
constexpr size_t kOpenAtOnce = 4 * kOpenTasks + (kChannels - 1) * kOpenTasksOfAChannel;

}  // namespace

std::vector<std::unique_ptr<ClientChannel>> OutgoingConnections::begin_view(
    const std::vector<int32_t>& earlier) {
  auto known = std::exchange(peers_, {});
  for (const int32_t before : earlier) {
    std::shared_ptr<Peer> found = before < 0 ? nullptr : std::move(known[before]);
    Peer& peer = *peers_.emplace_back(found ? std::move(found) : std::make_shared<Peer>());
    peer.rank = static_cast<int32_t>(peers_.size()) - 1;
    // Drops the failed channel so that the peer is dialled again. Its posted callbacks may still run.
    if (!peer.failure.ok() && peer.channel) close_in_callback(loop(), std::move(peer.channel));
    peer.failure = {};
  }
  std::vector<std::unique_ptr<ClientChannel>> gone;
  for (const auto& peer : known) {
    if (!peer) continue;
    give_up_dial(*peer, Status(Code::kViewChanged, "the worker is no longer in the job"));
    gone.push_back(std::move(peer->channel));
  }
  return gone;
}

// All chunks of peers that can be on their way or parked here at once fit into receive_memory. Otherwise
// chunks of later operations could leave no room for the chunk that this worker waits for. Each operation may
// have one small chunk beyond the small window.
Status OutgoingConnections::set_windows(size_t peers) {
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
  return {};
}

// ---- dialling

void OutgoingConnections::dial(int32_t rank) {
  transport::DialOptions dial;
  dial.hello = options_.hello;
  dial.token = options_.token;
  dial.deadline = loop().now() + options_.lease;
  dial.bulk_window = window_;
  dial.small_window = small_window_;
  const std::weak_ptr<Peer> weak = peers_[rank];
  dial.closed = [this, weak](const Status& why) {
    const auto peer = weak.lock();
    if (peer && !closed_) ended_(peer->rank, members_.lost_error(peer->rank, why), why);
  };
  dial.refused = [this, weak](uint64_t operation, const Status& why) {
    if (!weak.expired() && !closed_) rejected_(operation, why);
  };
  peers_[rank]->dial = RepeatedDial::start(
      network_, members_.view().members[rank].addresses, std::move(dial),
      [this, weak](Result<std::unique_ptr<ClientChannel>> result) {
        const auto peer = weak.lock();
        if (!peer || closed_) return;
        peer->dial = nullptr;
        if (!result.ok())
          return ended_(peer->rank, members_.unreachable_error(peer->rank, result.status()), result.status());
        peer->channel = std::move(result).value();
        for (Unsent& one : std::exchange(peer->unsent, {})) one.send(*peer->channel);
      });
}

void OutgoingConnections::give_up_dial(Peer& peer, const Status& why) {
  if (peer.dial) std::exchange(peer.dial, nullptr)->cancel();
  for (Unsent& one : std::exchange(peer.unsent, {})) {
    if (one.answered) loop().post([answered = std::move(one.answered), why] { answered(why); });
  }
}

void OutgoingConnections::fail(int32_t rank, const Status& why) {
  peers_[rank]->failure = why;
  give_up_dial(rank, why);
}

// ---- sending

template <typename Send>
void OutgoingConnections::with_channel(int32_t rank, uint64_t operation, Send send, Answered answered) {
  Peer& peer = *peers_[rank];
  if (peer.channel) return send(*peer.channel);
  peer.unsent.push_back({operation, std::move(send), std::move(answered)});
  if (!peer.dial) dial(rank);
}

void OutgoingConnections::send(int32_t rank, const BulkHeader& header, std::span<const std::byte> data,
                               std::function<void(const Status&)> done) {
  with_channel(rank, header.operation,
               [header, data, done = std::move(done)](ClientChannel& channel) mutable {
                 channel.send(header, data, std::move(done));
               });
}

void OutgoingConnections::send_small(int32_t rank, const BulkHeader& header,
                                     std::span<const std::byte> data) {
  if (const auto& channel = peers_[rank]->channel) return channel->send_small(header, data, nullptr);
  with_channel(rank, header.operation,
               [header, copy = std::vector<std::byte>(data.begin(), data.end())](ClientChannel& channel) {
                 channel.send_small(header, copy, nullptr);
               });
}

void OutgoingConnections::call(int32_t rank, Message message, transport::Time deadline, Answered answered) {
  const auto send = [message = std::move(message), deadline, answered](ClientChannel& channel) {
    channel.call(message, deadline, answered);
  };
  with_channel(rank, 0, send, answered);
}

void OutgoingConnections::revoke(uint64_t operation) {
  for (const auto& peer : peers_) {
    std::erase_if(peer->unsent, [&](const Unsent& one) { return one.operation == operation; });
    if (peer->channel) peer->channel->revoke(operation);
  }
}

void OutgoingConnections::revoke(int32_t rank, uint64_t operation) {
  if (peers_[rank]->channel) peers_[rank]->channel->revoke(operation);
}

void OutgoingConnections::drop_unsent() {
  for (const auto& peer : peers_)
    std::erase_if(peer->unsent, [](const Unsent& one) { return one.operation != 0; });
}

bool OutgoingConnections::all_sent() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) {
    return peer->unsent.empty() && (!peer->channel || !peer->failure.ok() || peer->channel->all_sent());
  });
}

// ---- the end

void OutgoingConnections::close(const transport::Goodbye& goodbye) {
  for (const auto& peer : peers_) {
    if (!peer->channel || !peer->failure.ok()) continue;
    peer->channel->call(goodbye, transport::kNever, [](Result<Message>) {});
    peer->channel->close(true);
  }
  for (const auto& peer : peers_) {
    if (peer->dial) std::exchange(peer->dial, nullptr)->cancel();
  }
  closed_ = true;
}

void OutgoingConnections::drop_channels() {
  closed_ = true;
  for (const auto& peer : peers_) {
    peer->unsent.clear();
    peer->dial = nullptr;
    peer->channel = nullptr;
  }
}

}  // namespace dsgd

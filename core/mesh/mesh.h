// A worker's part of the mesh of all workers: its peers and the operations that it carries out with them.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/mesh/events.h"
#include "core/mesh/operations.h"
#include "core/mesh/peer_options.h"
#include "core/mesh/peer_watch.h"
#include "core/mesh/peers.h"

namespace dsgd {

struct MeshOptions : PeerOptions {
  transport::Duration heartbeat_interval = std::chrono::seconds(2);
  PeerWatch::Probe probe = {};  // null: peers are not probed
};

class Mesh {
 public:
  Mesh(transport::Network& network, MeshOptions options, SessionEvents& events, std::shared_ptr<Log> log)
      : peers(network, options, events, std::move(log)),
        operations(peers),
        watch_(peers, operations, options.heartbeat_interval, options.probe) {
    peers.use_operations(&operations);
  }

  // Opens the mesh for `view`: peers may be dialled and operations begun from now on.
  Status open(const transport::JoinReply& view) {
    Status status = peers.open(view);
    if (status.ok() && (peers.size() > 1 || peers.options().views_change)) watch_.watch();
    return status;
  }
  // Ends all operations with `why`. The next ones are those of another view.
  void change_view(const transport::JoinReply& view, const Status& why) {
    operations.fail_all(why);
    peers.drop_unsent();
    watch_.begin_view();
    peers.change_view(view);
  }
  const Members& members() const { return peers.members(); }
  // Ends all operations; tells no peer.
  void fail(const Status& cause) {
    operations.fail_session(cause);
    peers.fail_session();
  }
  // As Peers::close.
  void close(const Status& cause, uint64_t steps, const std::vector<uint64_t>& digests,
             uint64_t departure_call) {
    if (peers.closed()) return;
    fail(cause.ok() ? Status(Code::kClosed, "the session was closed") : cause);
    peers.close(cause, steps, digests, departure_call);
  }

  bool is_silent(int32_t rank) const { return watch_.is_silent(rank); }

  // Before the network ends: nothing of it is used afterwards.
  void drop_channels() {
    operations.drop_chunks();
    peers.drop_channels();
  }

  Peers peers;
  Operations operations;

 private:
  PeerWatch watch_;
};

}  // namespace dsgd

// The events that the peers of this worker report to its session. Everything is on the session's loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/network.h"

namespace dsgd {

class SessionEvents {
 public:
  virtual ~SessionEvents() = default;
  // A peer reported a failure, sent damaged data, or some of its data was lost. The session cannot go on
  // with this peer.
  virtual void on_peer_failure(int32_t rank, const Status& why) = 0;
  // This worker cannot reach a peer, or a connection with it has ended without a goodbye. Which of the two is
  // cut off is unknown. `error` names the peer; `network_error` is what the network said. `silent`: the
  // connections are open, and a probe of the peer has failed; others follow while operations wait for it.
  virtual void on_peer_unreachable(int32_t rank, const Status& error, const Status& network_error,
                                   bool silent) = 0;
  // A peer closed its session in good order. If Peers::said_goodbye(rank), all its data has arrived;
  // otherwise the last of it may be lost.
  virtual void on_peer_departed(int32_t rank) = 0;
  // A peer's operation of this call timed out; the same operation has succeeded here.
  virtual void on_given_up(int32_t /*rank*/, uint64_t /*call*/, const Status& /*cause*/) {}
  // A peer that closes asks for an answer when `steps` steps are completed here.
  virtual void on_completion_asked(int32_t /*rank*/, uint64_t /*steps*/, transport::Responder respond) {
    respond(transport::Message(transport::Empty{}));
  }
  // A worker that joins asks for the next part of this worker's state.
  virtual void on_state_asked(const std::string& /*worker_id*/, const transport::FetchState&,
                              transport::Responder respond) {
    respond(Status(Code::kUnsupported, "this worker gives no state"));
  }
  virtual void on_learner_gone(const std::string& /*worker_id*/) {}  // before it was in a view
  // PutObject, DeleteObject or FetchObject.
  virtual void on_object(transport::Message message, transport::Responder respond) = 0;
  // As transport::ServerHandler::on_bulk and on_bulk_end, for a chunk of an object.
  virtual std::unique_ptr<transport::BulkSink> on_object_data(uint64_t /*put*/, const transport::BulkHeader&,
                                                              size_t /*nbytes*/) {
    return nullptr;
  }
  virtual void on_object_data_end(uint64_t /*put*/, const transport::BulkHeader&,
                                  std::unique_ptr<transport::BulkReceipt> receipt) {
    receipt->finish(Status(Code::kNotFound, "this worker holds no objects"));
  }
  // A peer closes its session after `steps` steps. `digests`: of its values; empty if it has none to give.
  virtual void on_goodbye(int32_t /*rank*/, uint64_t /*steps*/, std::vector<uint64_t> /*digests*/) {}
};

}  // namespace dsgd

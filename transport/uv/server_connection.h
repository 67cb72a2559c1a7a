// The accepting end: hands calls and chunks to the handler and carries the answers back.
#pragma once

#include <capnp/rpc-twoparty.h>

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "transport/schema/codec_capnp.h"
#include "transport/uv/connection.h"

namespace dsgd::transport::uv {

// The result of a handshake.
struct Greeting {
  std::string from;
  Hello hello;
  Proof proof;  // of this side, to be sent with the verdict
  std::shared_ptr<Tls> tls;
};

class ServerConnection final : public Connection, public ServerChannel, private FrameReader::Landing {
 public:
  // Sends the verdict on the hello, then serves.
  static Result<std::shared_ptr<ServerConnection>> make(NetworkShared shared, Fd fd, Greeting greeting,
                                                        ServerHandler* handler);
  ~ServerConnection() noexcept override;
  void start();

  // ServerChannel
  const Hello& hello() const override { return hello_; }
  std::string address() const override { return peer_; }
  void discard(uint64_t operation, const Status& why) override;
  void close() override;

 private:
  class WireServer;
  class Answer;
  class Receipt;
  // Handles that outlive the connection find it here, or null.
  struct Anchor {
    ServerConnection* connection;
  };
  using CallContext = capnp::CallContext<schema::Wire::CallParams, schema::Wire::CallResults>;
  using PushContext = capnp::CallContext<schema::Wire::PushParams, schema::Wire::PushResults>;
  template <typename Context>
  struct Unanswered {
    Context context;
    kj::Own<kj::PromiseFulfiller<void>> fulfiller;
  };

  ServerConnection(NetworkShared shared, Greeting greeting, ServerHandler* handler);
  kj::Promise<void> on_rpc_call(CallContext context);
  kj::Promise<void> on_rpc_push(PushContext context);
  void answer_call(uint64_t id, const Result<Message>& result);
  void answer_push(uint64_t id, const Status& status);
  template <typename Context, typename Fill>
  static void answer(std::unordered_map<uint64_t, Unanswered<Context>>& unanswered, uint64_t id,
                     const Fill& fill);
  Status refusal(uint64_t operation) const;
  bool serving() const { return handler_ != nullptr && open(); }
  void drop_rpc();

  std::unique_ptr<BulkSink> on_span(const BulkHeader& header, size_t nbytes, Status* refused) override;

  bool nothing_to_send() const override { return true; }
  bool holds_messages() const override { return !calls_.empty() || !pushes_.empty(); }
  void mute() override { handler_ = nullptr; }
  void broken(const Status& why) override;
  void tear_down() override;

  const Hello hello_;
  const Proof proof_;
  ServerHandler* handler_;
  std::optional<capnp::RpcSystem<capnp::rpc::twoparty::VatId>> rpc_;
  std::shared_ptr<Anchor> anchor_;
  uint64_t next_id_ = 0;
  std::unordered_map<uint64_t, Unanswered<CallContext>> calls_;
  std::unordered_map<uint64_t, Unanswered<PushContext>> pushes_;
  std::set<Receipt*> receipts_;  // with data
  std::map<uint64_t, Status> discarded_;
  std::deque<uint64_t> discarded_order_;
};

}  // namespace dsgd::transport::uv

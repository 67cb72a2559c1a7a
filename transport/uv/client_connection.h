// The dialling end: calls, chunks within their windows, and the promise that a revoked span is read no more.
#pragma once

#include <capnp/rpc-twoparty.h>

#include <map>
#include <optional>

#include "transport/schema/codec_capnp.h"
#include "transport/send_window.h"
#include "transport/uv/connection.h"

namespace dsgd::transport::uv {

class ClientConnection final : public Connection, private kj::TaskSet::ErrorHandler {
 public:
  static Result<std::shared_ptr<ClientConnection>> make(NetworkShared shared, Fd fd, std::shared_ptr<Tls> tls,
                                                        std::string peer, DialOptions options);
  ~ClientConnection() noexcept override;  // KJ members would make it noexcept(false), which clang refuses

  // Asks the peer for its bootstrap object; `ready` comes once, from the loop.
  void start(std::function<void(Status)> ready);

  void call(Message request, Time deadline, std::function<void(Result<Message>)> done);
  using Done = std::function<void(const Status&)>;
  void send(const BulkHeader& header, std::span<const std::byte> data, Done done);
  void send_small(const BulkHeader& header, std::span<const std::byte> data, Done done);
  void revoke(uint64_t operation);
  bool all_sent() const { return small_.empty() && bulk_.empty(); }
  void close(bool flush);
  // The channel object is gone: no callback, no span read any more, but what is queued besides goes out.
  void abandon();

 private:
  struct Call {
    std::function<void(Result<Message>)> done;
    TimerId timer = 0;
  };
  struct Chunk {
    BulkHeader header;
    std::span<const std::byte> data;
    Done done;
    size_t nbytes() const { return data.size(); }
  };
  struct SmallChunk {
    BulkHeader header;
    std::vector<std::byte> data;
    Done done;
    size_t nbytes() const { return data.size(); }
  };
  struct InFlight {
    uint64_t operation;
    size_t nbytes;
    Done done;                             // empty: revoked
    std::span<const std::byte> data = {};  // until the link has it
  };

  ClientConnection(NetworkShared shared, std::string peer, DialOptions options);
  void pump();
  void pump_small();
  void issue(Chunk chunk);
  void issue_small(SmallChunk chunk);
  using PushRequest = capnp::Request<schema::Wire::PushParams, schema::Wire::PushResults>;
  void push(PushRequest& request, Done answered);
  void answered(uint64_t id, const Status& status);
  void finish_call(uint64_t id, Result<Message> result);
  void post_done(Done done, Status status);
  void fail_all(const Status& why);
  void drop_rpc();
  Status closed_status() const;
  std::shared_ptr<ClientConnection> shared_self();

  bool nothing_to_send() const override { return all_sent(); }
  bool holds_messages() const override { return false; }  // answers are read at once
  void mute() override;
  void broken(const Status& why) override;
  void tear_down() override;
  Link::Span take_span(size_t slot) override;
  void link_written() override;
  void taskFailed(kj::Exception&& exception) override;

  DialOptions options_;
  std::optional<capnp::RpcSystem<capnp::rpc::twoparty::VatId>> rpc_;
  std::optional<schema::Wire::Client> wire_;
  std::unique_ptr<kj::TaskSet> tasks_;
  std::function<void(Status)> ready_;
  bool muted_ = false, closed_ = false, pumping_ = false;
  Status broken_;

  uint64_t next_id_ = 0;
  std::map<uint64_t, Call> calls_;
  SendWindow<Chunk> bulk_;
  std::map<uint64_t, InFlight> in_flight_;  // of bulk_
  SendWindow<SmallChunk> small_;
  bool pumping_small_ = false;
};

}  // namespace dsgd::transport::uv

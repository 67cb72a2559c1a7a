// The dialling end of a simulated connection, and the ClientChannel that core holds.
#pragma once

#include <map>
#include <memory>

#include "transport/authentication.h"
#include "transport/send_window.h"
#include "transport/sim/sim_network.h"

namespace dsgd::transport {

class ClientEnd final : public End, public std::enable_shared_from_this<ClientEnd> {
 public:
  using Done = std::function<void(const Status&)>;
  using Dialled = std::function<void(Result<std::unique_ptr<ClientChannel>>)>;
  ClientEnd(std::shared_ptr<NetworkState> network, std::shared_ptr<Connection> connection,
            std::string address, DialOptions options, Dialled dialled);

  void start();  // says hello
  bool receive(Packet& packet) override;
  void drained() override;

  const std::string& peer() const { return address_; }
  void call(Message request, Time deadline, std::function<void(Result<Message>)> done);
  void send(const BulkHeader& header, std::span<const std::byte> data, Done done);
  void send_small(const BulkHeader& header, std::span<const std::byte> data, Done done);
  void revoke(uint64_t operation);
  bool all_sent() const { return small_.empty() && bulk_.empty(); }
  void close(bool flush);
  void abandon();  // the channel or the network is destroyed: no callback any more, no span read
  void fail_dial(const Status& why);

 private:
  struct Call {
    const char* name;
    std::function<void(Result<Message>)> done;
    TimerId timer = 0;
  };
  struct Chunk {
    uint64_t id = 0;
    BulkHeader header;
    std::span<const std::byte> data;
    std::vector<std::byte> owned;  // of a small chunk
    Done done;
    size_t nbytes() const { return data.size() + owned.size(); }
  };
  struct Unanswered {
    uint64_t operation = 0;
    size_t nbytes = 0;
    bool small = false;
    Done done;
  };

  void challenged(std::span<const uint8_t> bytes);
  Proof prove_as(Side side) const;
  void verdict(const HelloReply& reply);
  void answered(uint64_t id, const Status& status);
  void pump();
  void pump_small();
  void write_chunk(Chunk chunk, bool small);
  void break_off(const Status& why, bool tell);
  void fail_all(const Status& why);
  void finish_if_flushed();
  void later(Task task);  // from the loop, if the connection is then not abandoned
  void post_gone(Done done);
  Status gone() const;

  std::shared_ptr<NetworkState> network_;
  std::shared_ptr<Connection> connection_;  // null when closed
  const std::string address_;
  DialOptions options_;
  Dialled dialled_;
  std::vector<uint8_t> hello_bytes_;
  Nonce challenge_{};
  uint64_t next_id_ = 1;
  std::map<uint64_t, Call> calls_;
  std::map<uint64_t, Unanswered> chunks_;
  SendWindow<Chunk> bulk_, small_;
  bool abandoned_ = false, closing_ = false;
  Status why_gone_;
};

class SimClientChannel final : public ChannelOf<ClientEnd> {
 public:
  using ChannelOf::ChannelOf;
  ~SimClientChannel() override { end_->abandon(); }
};

}  // namespace dsgd::transport

// Connections as core sees them. A connection is dialled by one side and carries calls and bulk data in that
// direction only (two workers that both send have two connections), so the two need not agree which of them
// dials. It is first-in-first-out and delivers at most once; when it breaks, an unknown suffix is lost.
// Everything here is used on the network's loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "transport/base/status.h"
#include "transport/files.h"
#include "transport/http.h"
#include "transport/loop.h"
#include "transport/messages.h"

namespace dsgd::transport {

// Answers one call, once. Copies share the answer: if all are destroyed without one, the caller gets an
// error. Answering after the connection has closed does nothing.
using Responder = std::function<void(Result<Message>)>;

// Receives a chunk's payload while it is read from the wire. The channel owns it. It does not use it after
// landed(), after ServerChannel::discard, or when the connection has closed (after on_close), and destroys it
// soon afterwards.
class BulkSink {
 public:
  virtual ~BulkSink() = default;
  // Returns where bytes [offset, offset + n) of the chunk are to be read into directly; null: use take().
  virtual std::byte* destination(size_t offset, size_t n) = 0;
  // A piece in cache-resident scratch, valid during the call. Pieces come in order; offset and all sizes but
  // the last are multiples of 64.
  virtual void take(size_t offset, std::span<const std::byte> piece) = 0;
  // The chunk is complete, and its call is answered with OK. Chunks of a connection, with or without a sink,
  // end in the order in which they were sent.
  virtual void landed() = 0;
};

// A chunk that has arrived whole, in pooled memory. Its call is answered when finish() is called, which gives
// the sender its credit back; until then the data stays valid. Destruction without finish() answers with an
// error.
class BulkReceipt {
 public:
  virtual ~BulkReceipt() = default;
  virtual std::span<const std::byte> data() const = 0;
  virtual void finish(const Status& status) = 0;  // then data() is gone
};

class ServerChannel {
 public:
  virtual ~ServerChannel() = default;
  virtual const Hello& hello() const = 0;
  virtual std::string address() const = 0;  // the peer's, for messages
  // Drops the arriving chunks of an operation. No sink of it is used after this returns. The rest of these
  // chunks is read and discarded, and their calls are answered with `why`.
  virtual void discard(uint64_t operation, const Status& why) = 0;
  virtual void close() = 0;  // on_close follows from the loop, once
};

// Handles the accepting side of connections. One handler may serve many channels. It outlives them.
class ServerHandler {
 public:
  virtual ~ServerHandler() = default;
  // The handshake was good. An error refuses the connection: it is the result of the dial, and no other
  // function is called for this channel.
  virtual Status on_open(ServerChannel&) { return {}; }
  virtual void on_call(ServerChannel&, Message request, Responder respond) = 0;
  // A chunk's header is in, its nbytes of payload are not. Null: receive into pooled memory. Only called for
  // chunks that travel as a span; small ones come with on_bulk_end alone.
  virtual std::unique_ptr<BulkSink> on_bulk(ServerChannel&, const BulkHeader&, size_t /*nbytes*/) {
    return nullptr;
  }
  // A chunk without a sink is complete.
  virtual void on_bulk_end(ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) = 0;
  // The connection is gone; `why` is OK when the dialling side closed it in good order. The channel is
  // destroyed after.
  virtual void on_close(ServerChannel&, const Status& why) = 0;
};

class ClientChannel {
 public:
  // Closes the connection. No callback comes and no span is read any more; what is queued may be lost.
  virtual ~ClientChannel() = default;
  virtual std::string address() const = 0;  // the address that answered, in numbers; dial() accepts it

  // Sends a request; `done` is called once, from the loop, also when the deadline passes or the connection
  // breaks.
  virtual void call(Message request, Time deadline, std::function<void(Result<Message>)> done) = 0;

  // Sends a chunk without copying it. The channel reads `data` until `done` is called: OK when the receiver
  // has finished the chunk, else why not. `done` comes from the loop, never from within send(). At most
  // `bulk_window` bytes (at least one chunk) of one operation are unanswered at a time; more wait their turn,
  // in order within the operation.
  virtual void send(const BulkHeader& header, std::span<const std::byte> data,
                    std::function<void(const Status&)> done) = 0;
  // Sends a chunk of at most kSmallBytes, copied at once. `done` (may be empty) is called when the message
  // has a place in the small window, without waiting for an answer; an answer that is an error goes to
  // `refused` of the dial. Those of one operation keep their order; of several that wait, the lowest
  // operation's goes first.
  virtual void send_small(const BulkHeader& header, std::span<const std::byte> data,
                          std::function<void(const Status&)> done) = 0;

  // Drops the chunks of this operation that are not begun, and completes a half-written one from a copy. Does
  // not call their `done`. No span of the operation is read after this returns. Does not throw.
  virtual void revoke(uint64_t operation) = 0;

  // Returns whether no chunk waits for its turn. Those that wait are lost when the channel is destroyed.
  virtual bool all_sent() const = 0;

  // Sends what is queued, tells the peer (Goodbye is core's) and closes; at once when `flush` is false.
  // `closed` is not called for it.
  virtual void close(bool flush) = 0;
};

// Gives the calls to the dialling end of a connection, which outlives the channel.
template <typename End>
class ChannelOf : public ClientChannel {
 public:
  explicit ChannelOf(std::shared_ptr<End> end) : end_(std::move(end)) {}
  std::string address() const override { return end_->peer(); }
  void call(Message request, Time deadline, std::function<void(Result<Message>)> done) override {
    end_->call(std::move(request), deadline, std::move(done));
  }
  void send(const BulkHeader& header, std::span<const std::byte> data,
            std::function<void(const Status&)> done) override {
    end_->send(header, data, std::move(done));
  }
  void send_small(const BulkHeader& header, std::span<const std::byte> data,
                  std::function<void(const Status&)> done) override {
    end_->send_small(header, data, std::move(done));
  }
  void revoke(uint64_t operation) override { end_->revoke(operation); }
  bool all_sent() const override { return end_->all_sent(); }
  void close(bool flush) override { end_->close(flush); }

 protected:
  std::shared_ptr<End> end_;
};

inline constexpr size_t kSmallBytes = 64 * 1024;

struct DialOptions {
  Hello hello;
  std::string token;  // proved to the other side, which has to prove it, too; never sent
  Time deadline = kNever;
  size_t bulk_window = 4 << 20;  // unanswered bytes per operation
  // Unanswered bytes of small chunks, all operations together. Beyond it, each operation may have one
  // unanswered chunk. Otherwise chunks of a later operation, which the peer keeps until it begins that
  // operation, could block the chunk that the peer waits for.
  size_t small_window = 1 << 20;
  // Called when the peer or the network has broken the connection; never from within a ClientChannel call.
  std::function<void(const Status& why)> closed;
  // A small chunk was answered with an error.
  std::function<void(uint64_t operation, const Status& why)> refused;
};

// Decides on each new connection, on the listening network's loop.
class AcceptHandler {
 public:
  virtual ~AcceptHandler() = default;
  struct Decision {
    class Network* network;  // serves the connection; may have another loop than the listener
    ServerHandler* handler;  // called on that network's loop
  };
  // The dialling side has to prove that it knows this. Empty: any process may connect.
  virtual const std::string& token() const = 0;
  // The dialling side has proved that it knows the token; the rest of the hello is for the handler to check.
  // An error is sent to the dialling side, which sees it as the result of its dial, and the connection is
  // closed.
  virtual Result<Decision> on_hello(const Hello& hello, const std::string& from) = 0;
  // The dialling side has not proved that it knows the token. Returns the error to send to it.
  virtual Status on_wrong_token(const Hello& hello, const std::string& from) = 0;
  // TLS failed with a connection that nothing else is known of.
  virtual void on_tls_failure(const std::string& /*from*/, const Status& /*why*/) {}
};

struct ListenOptions {
  // A connection that has not finished its handshake by then is closed. Workers and heads pass the lease.
  Duration handshake_timeout = std::chrono::seconds(10);
  // Descriptors that the job still has to open. Connections in their handshake never take those.
  int64_t reserved_descriptors = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;  // stops listening; accepted connections live on
  // Bound address with the real port: "127.0.0.1:40123", "unix:/tmp/x".
  virtual std::string address() const = 0;
};

// When frames carry checksums: always; never; or where a connection leaves the machine without TLS (kAuto). A
// connection has them if either side wants them.
enum class Checksum : uint8_t { kAuto, kAlways, kNever };

// PEM files: the certificate of this process, followed by those of intermediate CAs, if any; its private key,
// without a passphrase; and the CAs that the certificates of both sides of a connection must lead to.
struct TlsFiles {
  std::string cert, key, ca;
};

// A loop with its sockets. Destroying it closes all its connections (no callback comes after) and ends its
// thread.
class Network {
 public:
  virtual ~Network() = default;
  virtual Loop& loop() = 0;
  virtual void set_checksum(Checksum checksum) = 0;  // before the first dial or listen; else kAuto
  // Connects, says hello, proves the token, waits for the verdict and the other side's proof. Names are
  // resolved without blocking the loop; each address is tried.
  virtual void dial(const std::string& address, DialOptions options,
                    std::function<void(Result<std::unique_ptr<ClientChannel>>)> done) = 0;
  // Binds and listens; port 0 lets the system choose. Blocks to resolve a name, within
  // Environment::limit_resolving(). May be called before the loop is busy, from any thread but a loop's.
  virtual Result<std::unique_ptr<Listener>> listen(const std::string& address, AcceptHandler* handler,
                                                   const ListenOptions& options = {}) = 0;
  // The local address that reaches the first of `addresses` whose name is resolved (host part only,
  // "10.0.0.3"), with the interface's name and why it was chosen as a sentence for the log. `interface`: a
  // name ("eth1"), an address or a CIDR prefix that must be used; empty: as the system routes. Blocks as
  // listen() does. Any thread.
  virtual Result<std::string> local_address_for(const std::vector<std::string>& addresses,
                                                const std::string& interface, std::string* why) = 0;
  // Counters for tests and metrics; any thread.
  struct Counters {
    uint64_t bytes_sent = 0, bytes_received = 0;
    // Chunks that were read into a sink; payloads that could not be offered to one.
    uint64_t landed = 0, landing_missed = 0;
    // Receive memory: in use now, and at most so far.
    uint64_t pooled_bytes = 0, pooled_peak = 0;
    uint64_t accepted = 0;       // connections, with those whose handshake fails
    uint64_t accept_pauses = 0;  // times that a listener waited because descriptors or memory had run out
  };
  virtual Counters counters() const = 0;
};

// A file descriptor that the host's event loop can poll: readable while it is set.
class Notifier {
 public:
  virtual ~Notifier() = default;
  virtual int fd() const = 0;
  virtual void set() = 0;    // any thread
  virtual void clear() = 0;  // any thread
};

// Makes networks; the composition root of a process (uv) or of one simulated node (sim).
class Environment {
 public:
  virtual ~Environment() = default;
  // `name` becomes the thread's name ("dsgd-comm"). `receive_memory`: bound on pooled bytes.
  virtual Result<std::unique_ptr<Network>> new_network(const std::string& name, size_t receive_memory) = 0;
  // Networks that are made afterwards use TLS on every connection, and both sides check the other's
  // certificate. When a connection is dialled or accepted, files that have changed are read again. If they
  // are not usable then, `warn` is called, on the loop of any network, and the certificate before them stays
  // in use.
  virtual Status use_tls(const TlsFiles& /*files*/, std::function<void(const std::string&)> /*warn*/) {
    return Status(Code::kUnsupported, "this environment has no TLS");
  }
  virtual Result<std::unique_ptr<Notifier>> new_notifier() {
    return Status(Code::kUnsupported, "this environment has no file descriptors");
  }
  // Runs `program` in a thread of its own, which may block. The environment's destruction waits for its end.
  virtual Status start_thread(const std::string& /*name*/, std::function<void()> /*program*/) {
    return Status(Code::kUnsupported, "this environment has no threads");
  }
  // Sets the time at which blocking to resolve a host name ends with kTimeout, for calls under way, too.
  // Default: kNever. Any thread. A session that has joined allows none.
  virtual void limit_resolving(Time /*until*/) {}
  virtual Result<std::shared_ptr<Files>> new_files() {
    return Status(Code::kUnsupported, "this environment has no files");
  }
  // Without `tls`, requests go by plain HTTP; with it, by HTTPS. The server's certificate must lead to a CA
  // of tls->ca and name the server's host. The client shows tls->cert. Each new connection reads the files.
  virtual Result<std::unique_ptr<Http>> new_http(std::optional<TlsFiles> /*tls*/) {
    return Status(Code::kUnsupported, "this environment has no HTTP");
  }
  virtual std::string host_name() = 0;  // for messages
  virtual std::string machine() = 0;    // boot id: equal means the same node
  virtual int64_t process_id() = 0;
  virtual int processors() = 0;            // that this process may use
  virtual int64_t free_descriptors() = 0;  // that this process may still open
  // kOk while the environment works; kForked in a child of the process that made it; kClosed once the process
  // exits. In the last two cases its threads do nothing, and its objects must not be used. Async-signal-safe.
  virtual Code life() const noexcept = 0;
  // life() as a Status: OK, or the error to return to the host.
  Status alive() const {
    switch (life()) {
      case Code::kOk:
        return {};
      case Code::kForked:
        return Status(Code::kForked,
                      "this process is a fork of the one that opened the session; open a session of its own "
                      "with dsgd_init");
      default:
        return Status(Code::kClosed, "the process exits, which has ended its sessions");
    }
  }
};

}  // namespace dsgd::transport

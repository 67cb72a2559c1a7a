// A loop with its sockets.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>

#include "transport/network.h"
#include "transport/uv/client_connection.h"
#include "transport/uv/dialler.h"
#include "transport/uv/listener.h"
#include "transport/uv/origin.h"
#include "transport/uv/resolve.h"
#include "transport/uv/server_connection.h"
#include "transport/uv/uv_loop.h"

namespace dsgd::transport::uv {

class UvNetwork final : public Network {
 public:
  static Result<std::unique_ptr<Network>> make(const std::string& name, size_t receive_memory,
                                               std::shared_ptr<ResolveLimit> resolve_limit,
                                               std::shared_ptr<TlsContext> tls);
  ~UvNetwork() override;

  Loop& loop() override { return state_->loop(); }
  void set_checksum(Checksum checksum) override { state_->checksum_ = checksum; }
  void dial(const std::string& address, DialOptions options,
            std::function<void(Result<std::unique_ptr<ClientChannel>>)> done) override;
  Result<std::unique_ptr<Listener>> listen(const std::string& address, AcceptHandler* handler,
                                           const ListenOptions& options) override;
  Result<std::string> local_address_for(const std::vector<std::string>& addresses,
                                        const std::string& interface, std::string* why) override;
  Counters counters() const override;

  // An accepted connection whose hello was good comes to live here. Any thread.
  void adopt(Fd fd, Greeting greeting, ServerHandler* handler);

 private:
  // State that a network shares with its listeners, which may be destroyed after it. Used on the loop, except
  // the atomics.
  class State {
   public:
    State(std::unique_ptr<UvLoop> loop, size_t receive_memory, std::shared_ptr<TlsContext> tls);
    ~State() { read_.pool->set_freed(nullptr); }
    UvLoop& loop() { return *loop_; }
    NetworkShared shared() { return {*loop_, resolver_, read_, sent_, checksum_, tls_.get()}; }
    void keep(std::shared_ptr<Connection> connection);
    void begin_end(std::atomic<bool>* ended);
    void force_end();

    std::unique_ptr<UvLoop> loop_;
    Resolver resolver_{*loop_};
    const std::shared_ptr<TlsContext> tls_;  // null: none
    std::atomic<Checksum> checksum_ = Checksum::kAuto;
    ReadShared read_;
    std::atomic<uint64_t> sent_{0};
    AcceptCounters accepting_;
    std::set<std::shared_ptr<Connection>> connections_;
    std::set<std::shared_ptr<Dialler>> diallers_;
    std::set<std::shared_ptr<Acceptor>> acceptors_;
    std::atomic<bool>* ended_ = nullptr;  // set when the last connection has gone
    bool ending_ = false;
  };
  class UvListener;
  class UvClientChannel;

  UvNetwork(std::shared_ptr<State> state, std::shared_ptr<ResolveLimit> resolve_limit);

  const Origin origin_{};
  std::shared_ptr<State> state_;
  const std::shared_ptr<ResolveLimit> resolve_limit_;
};

}  // namespace dsgd::transport::uv

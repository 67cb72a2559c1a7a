#include "transport/uv/network.h"

#include <chrono>
#include <utility>

#include "transport/uv/local_address.h"

namespace dsgd::transport::uv {

namespace {
// A backstop: by then each connection has ended by itself (connection.cc).
constexpr Duration kEnding = std::chrono::seconds(5);
}  // namespace

// ---- handles of the user

class UvNetwork::UvClientChannel final : public ChannelOf<ClientConnection> {
 public:
  using ChannelOf::ChannelOf;
  ~UvClientChannel() override {
    if (origin_.is_gone()) {
      Origin::leave(end_);
      return;
    }
    end_->abandon();
  }

 private:
  const Origin origin_{};
};

class UvNetwork::UvListener final : public Listener {
 public:
  UvListener(std::weak_ptr<State> state, std::shared_ptr<Acceptor> acceptor, std::string address)
      : state_(std::move(state)), acceptor_(std::move(acceptor)), address_(std::move(address)) {}
  ~UvListener() override {
    if (origin_.is_gone()) {
      Origin::leave(acceptor_);
      return;
    }
    auto state = state_.lock();
    if (!state) return;  // the network has gone, and has taken the socket with it
    auto stop = [&state, this] {
      acceptor_->stop();
      state->acceptors_.erase(acceptor_);
      acceptor_.reset();
    };
    state->loop().on_loop() ? stop() : run_and_wait(state->loop(), stop);
  }
  std::string address() const override { return address_; }

 private:
  const Origin origin_{};
  const std::weak_ptr<State> state_;
  std::shared_ptr<Acceptor> acceptor_;
  const std::string address_;
};

// ---- the state

UvNetwork::State::State(std::unique_ptr<UvLoop> loop, size_t receive_memory, std::shared_ptr<TlsContext> tls)
    : loop_(std::move(loop)), tls_(std::move(tls)), read_(receive_memory) {
  read_.pool->set_freed([this] { loop_->post([this] { read_.wake_memory_waiters(); }); });
}

void UvNetwork::State::keep(std::shared_ptr<Connection> connection) {
  connection->on_ended = [this](Connection* ended) {
    connections_.erase(ended->shared_from_this());
    if (connections_.empty() && ended_) ended_->store(true, std::memory_order_release);
  };
  connections_.insert(std::move(connection));
}

void UvNetwork::State::begin_end(std::atomic<bool>* ended) {
  ending_ = true;
  resolver_.end();
  for (; !acceptors_.empty(); acceptors_.erase(acceptors_.begin())) (*acceptors_.begin())->stop();
  for (; !diallers_.empty(); diallers_.erase(diallers_.begin())) (*diallers_.begin())->abandon();
  ended_ = ended;
  const auto connections = connections_;  // release() may end one
  for (auto& connection : connections) connection->release(true);
  if (connections_.empty()) ended->store(true, std::memory_order_release);
}

void UvNetwork::State::force_end() {
  const auto connections = connections_;
  for (auto& connection : connections) connection->kill();
}

// ---- the network

Result<std::unique_ptr<Network>> UvNetwork::make(const std::string& name, size_t receive_memory,
                                                 std::shared_ptr<ResolveLimit> resolve_limit,
                                                 std::shared_ptr<TlsContext> tls) {
  auto loop = UvLoop::start(name);
  if (!loop.ok()) return loop.status();
  auto state = std::make_shared<State>(std::move(loop).value(), receive_memory, std::move(tls));
  return std::unique_ptr<Network>(new UvNetwork(std::move(state), std::move(resolve_limit)));
}

UvNetwork::UvNetwork(std::shared_ptr<State> state, std::shared_ptr<ResolveLimit> resolve_limit)
    : state_(std::move(state)), resolve_limit_(std::move(resolve_limit)) {}

UvNetwork::~UvNetwork() {
  if (origin_.is_gone()) {
    Origin::leave(state_);
    return;
  }
  UvLoop& loop = state_->loop();
  std::atomic<bool> ended{false};
  run_and_wait(loop, [&] { state_->begin_end(&ended); });
  loop.wait(ended, loop.now() + kEnding);
  run_and_wait(loop, [this] { state_->force_end(); });
  state_->read_.pool->set_freed(nullptr);  // receipts may come back later still
  loop.stop();  // until then its tasks and timers may dial, and dial() uses the loop
  state_->loop_.reset();
}

void UvNetwork::dial(const std::string& address, DialOptions options,
                     std::function<void(Result<std::unique_ptr<ClientChannel>>)> done) {
  State* state = state_.get();
  auto dialler = std::make_shared<Dialler>(
      state->shared(), address, std::move(options),
      [state](std::shared_ptr<ClientConnection> connection) { state->keep(std::move(connection)); },
      [state, done = std::move(done)](const std::shared_ptr<Dialler>& self,
                                      Result<std::shared_ptr<ClientConnection>> result) {
        state->diallers_.erase(self);
        if (!result.ok()) return done(result.status());
        done(std::unique_ptr<ClientChannel>(new UvClientChannel(std::move(result).value())));
      });
  auto start = [state, dialler] {
    if (state->ending_) return;
    state->diallers_.insert(dialler);
    dialler->start();
  };
  state->loop().on_loop() ? start() : state->loop().post(start);
}

Result<std::unique_ptr<Listener>> UvNetwork::listen(const std::string& address, AcceptHandler* handler,
                                                    const ListenOptions& options) {
  auto bound = bind_and_listen(address, resolve_limit_);
  if (!bound.ok()) return bound.status();
  const std::string real = bound.value().address;
  UvLoop& loop = state_->loop();
  auto acceptor = std::make_shared<Acceptor>(loop, std::move(bound).value(), handler, options,
                                             state_->accepting_, state_->tls_);
  Status started(Code::kNoMemory, "no memory to listen on " + real);
  std::atomic<bool> done{false};
  loop.run(
      [&] {
        KJ_DEFER(done.store(true, std::memory_order_release));
        const auto at = state_->acceptors_.insert(acceptor).first;
        Status status = acceptor->start();
        if (!status.ok()) state_->acceptors_.erase(at);
        started = std::move(status);
      },
      done, kNever);
  if (!started.ok()) return started;
  return std::unique_ptr<Listener>(new UvListener(state_, std::move(acceptor), real));
}

Result<std::string> UvNetwork::local_address_for(const std::vector<std::string>& addresses,
                                                 const std::string& interface, std::string* why) {
  return choose_local_address(addresses, interface, why, resolve_limit_);
}

void UvNetwork::adopt(Fd fd, Greeting greeting, ServerHandler* handler) {
  State* state = state_.get();
  auto serve = [state, fd = std::make_shared<Fd>(std::move(fd)), greeting = std::move(greeting),
                handler]() mutable {
    if (state->ending_) return;
    auto connection = ServerConnection::make(state->shared(), std::move(*fd), std::move(greeting), handler);
    if (!connection.ok()) return;  // the dialling side sees the connection end
    state->keep(connection.value());
    connection.value()->start();
  };
  state->loop().on_loop() ? serve() : state->loop().post(std::move(serve));
}

Network::Counters UvNetwork::counters() const {
  Counters counters;
  counters.bytes_sent = state_->sent_.load(std::memory_order_relaxed);
  counters.bytes_received = state_->read_.received.load(std::memory_order_relaxed);
  counters.landed = state_->read_.landed.load(std::memory_order_relaxed);
  counters.landing_missed = state_->read_.landing_missed.load(std::memory_order_relaxed);
  counters.pooled_bytes = state_->read_.pool->in_use();
  counters.pooled_peak = state_->read_.pool->peak();
  counters.accepted = state_->accepting_.accepted.load(std::memory_order_relaxed);
  counters.accept_pauses = state_->accepting_.pauses.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace dsgd::transport::uv

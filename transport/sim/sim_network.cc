#include "transport/sim/sim_network.h"

#include <charconv>
#include <optional>

#include "transport/sim/client_end.h"
#include "transport/sim/server_end.h"

namespace dsgd::transport {
namespace {

struct Address {
  std::string host;  // empty for a Unix socket
  std::string port;  // or "unix:/path"
};

std::optional<Address> parse(const std::string& text) {
  if (text.starts_with("unix:")) {
    if (text.size() == 5) return std::nullopt;
    return Address{"", text};
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  Address address{text.substr(0, colon), text.substr(colon + 1)};
  if (address.host.starts_with('[') && address.host.ends_with(']')) {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find_first_of("[]:") != std::string::npos) {
    return std::nullopt;
  }
  unsigned port = 0;
  const char* end = address.port.data() + address.port.size();
  auto [stop, error] = std::from_chars(address.port.data(), end, port);
  if (error != std::errc() || stop != end || port > 65535 || address.host.empty()) return std::nullopt;
  return address;
}

Status bad_address(const std::string& address) {
  return {Code::kInvalidArgument,
          "'" + address + "' is not an address: write host:port, [IPv6]:port or unix:/path"};
}

bool is_loopback(const std::string& name) {
  return name == "localhost" || name == "::1" || name.starts_with("127.");
}
bool is_any(const std::string& name) { return name == "0.0.0.0" || name == "::"; }

class SimListener final : public Listener {
 public:
  explicit SimListener(std::shared_ptr<ListenerState> state) : state_(std::move(state)) {}
  ~SimListener() override { state_->open = false; }
  std::string address() const override { return state_->address; }

 private:
  std::shared_ptr<ListenerState> state_;
};

// From the first packet to the connection; then the hello is ClientEnd's.
struct Dial : std::enable_shared_from_this<Dial> {
  std::shared_ptr<NetworkState> network;
  std::string text;
  Address address;
  DialOptions options;
  ClientEnd::Dialled done;
  TimerId timer = 0;
  int knocks = 0;
  std::weak_ptr<ClientEnd> end;
  bool over = false;

  void start() {
    if (options.deadline != kNever) {
      timer = network->loop->schedule(options.deadline, [self = shared_from_this()] { self->too_late(); });
    }
    knock(Duration(0));
  }

  void too_late() {
    const Status why(Code::kUnreachable, "no answer from " + text + " before the deadline");
    if (auto connected = end.lock()) {
      connected->fail_dial(why);
    } else {
      finish(why);
    }
  }

  void finish(Result<std::unique_ptr<ClientChannel>> result) {
    if (std::exchange(over, true)) return;
    if (timer != 0) network->loop->cancel(timer);
    done(std::move(result));
  }

  // Tells the dialling loop, after the time an answer takes.
  void refuse(const Status& why, Duration after) {
    Kernel& kernel = network->kernel;
    kernel.at(kernel.now() + after, &network->process, network->loop_state, "refused",
              [self = shared_from_this(), why] { self->finish(why); });
  }

  void knock(Duration after) {
    Kernel& kernel = network->kernel;
    kernel.at(kernel.now() + after, &network->process, network->loop_state, "connect",
              [self = shared_from_this()] { self->connect(); });
  }

  void connect() {
    if (over) return;
    Kernel& kernel = network->kernel;
    Process& process = network->process;
    const bool unix_socket = address.host.empty();
    const std::string host = unix_socket ? process.host : kernel.resolve(process.host, address.host);
    const Duration away = kernel.delay(process, process);
    if (host.empty() || process.finishing) {
      return refuse({Code::kUnreachable, "cannot resolve host '" + address.host + "' of " + text}, away);
    }
    std::shared_ptr<ListenerState> listener = find(host);
    if (!listener) {
      return refuse({Code::kUnreachable, "connection to " + text + " refused: nobody listens there"}, away);
    }
    Process& other = listener->network->process;
    if (kernel.blocked(process, other) || kernel.blocked(other, process)) {
      const Duration again = std::max<Duration>(
          kernel.options().retransmission * 5 * (1 << std::min(knocks, 6)), std::chrono::milliseconds(20));
      ++knocks;
      return knock(again);  // as TCP tries its first packet again
    }
    auto connection = std::make_shared<Connection>(kernel, kernel.next_connection(), &process, &other);
    kernel.add(connection);
    auto client = std::make_shared<ClientEnd>(
        network, connection, text, std::move(options),
        [self = shared_from_this()](auto result) { self->finish(std::move(result)); });
    auto server = std::make_shared<ServerEnd>(
        listener, connection,
        kernel.host_address(process.host) + ":" + std::to_string(30000 + connection->id % 10000));
    end = client;
    connection->client = client;
    connection->server = server;
    network->clients.emplace(connection->id, connection);
    listener->network->servers.emplace(connection->id, connection);
    connection->to_server.set_writer(network->loop_state, client);
    connection->to_server.set_reader(listener->network->loop_state, server);
    connection->to_client.set_writer(listener->network->loop_state, server);
    connection->to_client.set_reader(network->loop_state, client);
    client->start();
  }

  std::shared_ptr<ListenerState> find(const std::string& host) {
    auto& listeners = network->kernel.listeners();
    auto found = listeners.find(host + "|" + address.port);
    if (found == listeners.end()) return nullptr;
    auto listener = found->second.lock();
    if (!listener || !listener->usable()) return nullptr;
    if (address.host.empty()) return listener;
    // A socket bound to the loopback is not reached by the host's address, nor the reverse.
    const std::string bound = parse(listener->address)->host;
    return is_any(bound) || is_loopback(bound) == is_loopback(address.host) ? listener : nullptr;
  }
};

}  // namespace

bool ListenerState::usable() const { return open && network->loop != nullptr && !network->process.dead; }

SimLoop::SimLoop(Kernel& kernel, Process& process)
    : kernel_(kernel), process_(process), state_(std::make_shared<LoopState>()) {
  state_->process = &process;
}

SimLoop::~SimLoop() {
  state_->alive = false;
  kernel_.drop_events_of(state_.get());
}

void SimLoop::post(Task task) {
  // A little later, so that the loops of the world interleave differently with each seed; never before an
  // earlier post.
  const Time when = kernel_.now() + kernel_.random().between(Duration(0), std::chrono::microseconds(2));
  state_->last_post = std::max(state_->last_post, when);
  kernel_.at(state_->last_post, &process_, state_, "post", std::move(task));
}

TimerId SimLoop::schedule(Time when, Task task) {
  kernel_.require_loop(state_.get(), "Loop::schedule");
  if (when == kNever) return 0;
  when =
      std::max(when, kernel_.now()) + kernel_.random().between(Duration(0), kernel_.options().timer_lateness);
  return kernel_.at(when, &process_, state_, "timer", std::move(task));
}

void SimLoop::cancel(TimerId id) {
  kernel_.require_loop(state_.get(), "Loop::cancel");
  kernel_.cancel(id);
}

bool SimLoop::wait(const std::atomic<bool>& done, Time deadline) {
  return kernel_.wait(process_, done, deadline);
}

void NetworkState::pool_released(size_t nbytes) {
  counters.pooled_bytes -= nbytes;
  for (const auto& [id, connection] : servers) {
    auto end = std::static_pointer_cast<ServerEnd>(connection->server);
    if (end && end->waits_for_pool()) connection->to_server.kick();
  }
}

SimNetwork::SimNetwork(Kernel& kernel, Process& process, size_t receive_memory)
    : kernel_(kernel),
      process_(process),
      loop_(kernel, process),
      state_(std::make_shared<NetworkState>(kernel, process, receive_memory)) {
  state_->loop = &loop_;
  state_->loop_state = loop_.state();
}

SimNetwork::~SimNetwork() {
  state_->loop = nullptr;
  for (const auto& [id, connection] : std::map(state_->clients)) {
    if (auto end = std::static_pointer_cast<ClientEnd>(connection->client)) end->abandon();
  }
  for (const auto& [id, connection] : std::map(state_->servers)) {
    if (auto end = std::static_pointer_cast<ServerEnd>(connection->server)) end->abandon();
  }
}

void SimNetwork::dial(const std::string& address, DialOptions options,
                      std::function<void(Result<std::unique_ptr<ClientChannel>>)> done) {
  kernel_.require_loop(loop_.state().get(), "Network::dial");
  auto parsed = parse(address);
  if (!parsed) {
    loop_.post([done = std::move(done), address] { done(bad_address(address)); });
    return;
  }
  auto dial = std::make_shared<Dial>();
  dial->network = state_;
  dial->text = address;
  dial->address = *parsed;
  dial->options = std::move(options);
  dial->done = std::move(done);
  dial->start();
}

Result<std::unique_ptr<Listener>> SimNetwork::listen(const std::string& address, AcceptHandler* handler,
                                                     const ListenOptions&) {
  auto parsed = parse(address);
  if (!parsed) return bad_address(address);
  if (!parsed->host.empty() && !is_any(parsed->host) &&
      kernel_.resolve(process_.host, parsed->host) != process_.host) {
    return Status(Code::kUnreachable, "cannot listen on " + address + ": '" + parsed->host +
                                          "' is not an address of host " + process_.host);
  }
  auto state = std::make_shared<ListenerState>();
  auto& listeners = kernel_.listeners();
  auto taken = [&](const std::string& port) {
    auto found = listeners.find(process_.host + "|" + port);
    if (found == listeners.end()) return false;
    auto other = found->second.lock();
    return other && other->usable();
  };
  if (parsed->port == "0") {
    do {
      parsed->port = std::to_string(kernel_.free_port());
    } while (taken(parsed->port));
  } else if (taken(parsed->port)) {
    return Status(Code::kAddressInUse,
                  "cannot listen on " + address + ": the address is in use; choose another port or 0");
  }
  state->network = state_;
  state->handler = handler;
  if (parsed->host.empty()) {
    state->address = parsed->port;
  } else {
    const bool v6 = parsed->host.find(':') != std::string::npos;
    state->address = (v6 ? "[" + parsed->host + "]" : parsed->host) + ":" + parsed->port;
  }
  listeners[process_.host + "|" + parsed->port] = state;
  return std::unique_ptr<Listener>(std::make_unique<SimListener>(std::move(state)));
}

Result<std::string> SimNetwork::local_address_for(const std::vector<std::string>& addresses,
                                                  const std::string& interface, std::string* why) {
  const std::string& address = addresses.front();
  auto parsed = parse(address);
  if (!parsed) return bad_address(address);
  const std::string own = kernel_.host_address(process_.host);
  const std::string host =
      parsed->host.empty() ? process_.host : kernel_.resolve(process_.host, parsed->host);
  if (host.empty())
    return Status(Code::kUnreachable, "cannot resolve host '" + parsed->host + "' of " + address);
  std::string chosen = is_loopback(parsed->host) || parsed->host.empty() ? "127.0.0.1" : own;
  std::string reason = "the system routes " + address + " that way";
  if (!interface.empty()) {
    reason = "the configuration asks for " + interface;
    if (interface == "sim0" || interface == own || interface == "10.0.0.0/16") {
      chosen = own;
    } else if (interface == "lo" || interface == "127.0.0.1" || interface == "127.0.0.0/8") {
      chosen = "127.0.0.1";
    } else {
      return Status(Code::kNotFound, "no interface of host " + process_.host + " matches '" + interface +
                                         "'; there are lo (127.0.0.1) and sim0 (" + own + ")");
    }
  }
  if (why != nullptr) {
    *why = "address " + chosen + " (" + (chosen == own ? "sim0" : "lo") + "): " + reason;
  }
  return chosen;
}

Result<std::unique_ptr<Network>> SimEnvironment::new_network(const std::string&, size_t receive_memory) {
  return std::unique_ptr<Network>(std::make_unique<SimNetwork>(kernel_, process_, receive_memory));
}

}  // namespace dsgd::transport

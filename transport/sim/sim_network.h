// Loop, Network, Listener and Environment of the simulated world.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "transport/network.h"
#include "transport/sim/connection.h"
#include "transport/sim/kernel.h"

namespace dsgd::transport {

class ClientEnd;
class ServerEnd;

class SimLoop final : public Loop {
 public:
  SimLoop(Kernel& kernel, Process& process);
  ~SimLoop() override;

  Time now() const override { return kernel_.now(); }
  void post(Task task) override;
  TimerId schedule(Time when, Task task) override;
  void cancel(TimerId id) override;
  bool on_loop() const override { return kernel_.current_loop() == state_.get(); }
  bool wait(const std::atomic<bool>& done, Time deadline) override;
  uint64_t random() override { return process_.random.next(); }

  const std::shared_ptr<LoopState>& state() const { return state_; }

 private:
  Kernel& kernel_;
  Process& process_;
  std::shared_ptr<LoopState> state_;
};

// State of a network that the ends of its connections use. Outlives it while pooled data or an end is held.
struct NetworkState {
  NetworkState(Kernel& kernel, Process& process, size_t receive_memory)
      : kernel(kernel), process(process), receive_memory(receive_memory) {}
  Kernel& kernel;
  Process& process;
  Loop* loop = nullptr;  // null: the network is gone
  std::shared_ptr<LoopState> loop_state;
  const size_t receive_memory;
  Checksum checksum = Checksum::kAuto;
  Network::Counters counters;
  std::map<uint64_t, std::shared_ptr<Connection>> clients, servers;  // open connections, by age

  bool wants_checksums(const Connection& connection) const {
    const bool leaves_machine = connection.to_server.from()->host != connection.to_server.to()->host;
    return checksum == Checksum::kAlways || (checksum == Checksum::kAuto && leaves_machine);
  }
  // Pooled memory has become free: connections that wait for some are looked at again.
  void pool_released(size_t nbytes);
};

struct ListenerState {
  std::shared_ptr<NetworkState> network;
  AcceptHandler* handler = nullptr;
  std::string address;
  bool open = true;
  bool usable() const;
};

class SimNetwork final : public Network {
 public:
  SimNetwork(Kernel& kernel, Process& process, size_t receive_memory);
  ~SimNetwork() override;

  void set_checksum(Checksum checksum) override { state_->checksum = checksum; }
  Loop& loop() override { return loop_; }
  void dial(const std::string& address, DialOptions options,
            std::function<void(Result<std::unique_ptr<ClientChannel>>)> done) override;
  Result<std::unique_ptr<Listener>> listen(const std::string& address, AcceptHandler* handler,
                                           const ListenOptions& options) override;
  Result<std::string> local_address_for(const std::vector<std::string>& addresses,
                                        const std::string& interface, std::string* why) override;
  Counters counters() const override { return state_->counters; }

  const std::shared_ptr<NetworkState>& state() const { return state_; }

 private:
  Kernel& kernel_;
  Process& process_;
  SimLoop loop_;
  std::shared_ptr<NetworkState> state_;
};

class SimEnvironment final : public Environment {
 public:
  SimEnvironment(Kernel& kernel, Process& process) : kernel_(kernel), process_(process) {}
  Result<std::unique_ptr<Network>> new_network(const std::string& name, size_t receive_memory) override;
  Status start_thread(const std::string&, std::function<void()> program) override {
    kernel_.start_program(process_, std::move(program));
    return {};
  }
  std::string host_name() override { return process_.host; }
  std::string machine() override { return "machine of " + process_.host; }
  int64_t process_id() override { return 1000 + process_.id; }
  int processors() override { return 1; }
  int64_t free_descriptors() override { return INT64_MAX; }
  Code life() const noexcept override { return Code::kOk; }

 private:
  Kernel& kernel_;
  Process& process_;
};

}  // namespace dsgd::transport

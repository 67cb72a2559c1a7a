// A job of members and a head in the simulated world: what the membership tests set up, break and look at.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/membership/membership.h"
#include "transport/sim/world.h"

namespace dsgd {

using namespace std::chrono_literals;

inline constexpr const char* kHeadPort = ":7700";
inline constexpr transport::Duration kLease = 10s;
inline constexpr transport::Duration kSlack = 100ms;  // what an error may come later than its promise

// The head with its network, as a process of its own or inside a worker's.
class SimHead {
 public:
  SimHead(transport::SimWorld& world, transport::ProcessId process, const std::string& host,
          uint32_t num_workers, transport::Duration lease, const std::string& token = "secret");
  ~SimHead();

  const transport::ProcessId process;
  std::vector<Status> ends;

 private:
  std::unique_ptr<transport::Environment> environment_;
  std::unique_ptr<transport::Network> network_;
  std::unique_ptr<Head> head_;
  std::unique_ptr<Admission> admission_;
  std::unique_ptr<transport::Listener> listener_;
};

struct SimWorkerOptions {
  std::string id = "w0";
  std::string head_host = "node0";
  std::string token = "secret";
  uint32_t num_workers = 2;
  int32_t rank = -1;
  bool hosts_head = false;
  bool supervised = false;  // reports to the program that started it
  transport::Duration lease = 10s;
  transport::Duration interval = 1s;
  transport::Duration patience = 60s;  // from now to the deadline of the join
};

class SimWorker {
 public:
  SimWorker(transport::SimWorld& world, transport::ProcessId process, SimWorkerOptions options);
  ~SimWorker();  // the process may be dead or paused

  void leave(Status cause = {});
  void report(Status cause);
  void destroy();  // member and networks, as a session's end does; callbacks must be over then

  bool ok() const { return joined && joined->ok(); }
  int32_t rank() const { return ok() ? joined->value().rank : -1; }

  const transport::ProcessId process;
  const SimWorkerOptions options;
  std::string host;
  int64_t pid = 0;

  // Arguments and times of the callbacks.
  std::optional<Result<transport::JoinReply>> joined;
  transport::Time joined_at{}, broken_at{}, left_at{};
  std::vector<Status> broken;
  std::vector<int32_t> left;
  std::vector<std::string> warnings;
  std::vector<WorkerReport> reports;
  int calls_of_joined = 0, calls_of_done = 0;

 private:
  transport::SimWorld& world_;
  std::unique_ptr<transport::Environment> environment_;
  std::unique_ptr<transport::Network> network_, heartbeat_network_;
  std::unique_ptr<Member> member_;
};

}  // namespace dsgd

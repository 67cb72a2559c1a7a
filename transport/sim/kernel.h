// The machinery of the simulated world: the queue of events, processes, hosts, connections. See world.h for
// its use.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/sim/random.h"
#include "transport/sim/world.h"

namespace dsgd::transport {

class Connection;
class Program;
struct ListenerState;
struct Process;

// A loop's identity in the queue: events of a loop that is gone are dropped.
struct LoopState {
  Process* process = nullptr;
  bool alive = true;
  Time last_post{};
};

struct Event {
  Process* process = nullptr;  // held while it is paused; null: the network's or the test's
  std::shared_ptr<LoopState> loop;
  const char* what = "";
  Task task;
};

struct Process {
  ProcessId id = 0;
  std::string host;
  Random random{0};
  bool paused = false;
  bool dead = false;                             // killed; its events are held until finish_killed()
  bool finishing = false;                        // its programs return, cut off from the others
  std::vector<std::pair<uint64_t, Event>> held;  // events that came due while it was paused, in order
  std::vector<Program*> programs;
};

class Kernel {
 public:
  Kernel(uint64_t seed, SimOptions options);
  ~Kernel();

  Time now() const { return now_; }
  Random& random() { return random_; }
  Random& test_random() { return test_random_; }
  const SimOptions& options() const { return options_; }

  // Events with equal times run in the order in which they were made.
  uint64_t at(Time when, Process* process, std::shared_ptr<LoopState> loop, const char* what, Task task);
  void cancel(uint64_t event);
  void drop_events_of(const LoopState* loop);
  // Runs the next event that is due at `limit` or before; else moves the clock to `limit` and returns false.
  bool step(Time limit);
  const LoopState* current_loop() const { return current_loop_; }
  // The contract of network.h: used on the network's loop. A test that breaks it ends here, with the place.
  void require_loop(const LoopState* loop, const char* what) const;

  void trace(uint64_t value) { hash_ = (hash_ ^ value) * 0x9fb21c651e98df25u, hash_ ^= hash_ >> 29; }
  void trace_bytes(const void* data, size_t n);
  uint64_t hash() const { return hash_; }

  Process& start_process(const std::string& host);
  Process& process(ProcessId id) { return *processes_[id]; }
  size_t processes() const { return processes_.size(); }

  // ---- hosts, ports
  std::string host_address(const std::string& host);
  // The host that `name` (a host's name or address, or a loopback name) means on `from`; "" if none.
  std::string resolve(const std::string& from, const std::string& name) const;
  // "host|10.0.0.1:7" -> ..
  std::map<std::string, std::weak_ptr<ListenerState>>& listeners() { return listeners_; }
  uint16_t free_port();
  uint64_t next_connection() { return ++last_connection_; }

  // ---- links
  bool blocked(const Process& from, const Process& to) const;
  void set_blocked(ProcessId from, ProcessId to, bool blocked);
  // A bit of the next packet with a message from one to the other arrives flipped.
  void flip_bit(ProcessId from, ProcessId to) { flips_.insert({from, to}); }
  bool take_flip(const Process& from, const Process& to) { return flips_.erase({from.id, to.id}) > 0; }
  bool flip_pending(ProcessId from, ProcessId to) const { return flips_.contains({from, to}); }
  void set_delay(ProcessId from, ProcessId to, LinkDelay delay) { delays_[{from, to}] = delay; }
  Duration delay(const Process& from, const Process& to);

  void add(std::shared_ptr<Connection> connection);
  void remove(const Connection* connection);
  std::vector<std::shared_ptr<Connection>> connections() const;

  void pause(Process& process);
  void resume(Process& process);
  void kill(Process& process, Death death);
  void finish_killed(Process& process);

  // ---- programs
  void start_program(Process& process, std::function<void()> program);
  size_t running_programs() const;
  // Blocks the caller in virtual time.
  bool wait(Process& process, const std::atomic<bool>& done, Time deadline);

 private:
  void run(Event& event);
  void release_held(Process& process);
  void wake_programs(const Process& process);
  void enqueue(Time when, uint64_t id, Event event);

  const SimOptions options_;
  Random random_, test_random_;
  Time now_ = std::chrono::seconds(1);
  uint64_t next_event_ = 1;
  uint64_t hash_ = 0x243f6a8885a308d3u;
  using Due = std::pair<Time, uint64_t>;  // an event's time and number
  std::unordered_map<uint64_t, Event> events_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> queue_;  // also of events that were cancelled
  const LoopState* current_loop_ = nullptr;
  bool ending_ = false;  // nothing new happens: what is destroyed may still try
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<std::string, std::string> hosts_;  // name -> address
  std::map<std::string, std::weak_ptr<ListenerState>> listeners_;
  uint16_t next_port_ = 40000;
  uint64_t last_connection_ = 0;
  std::set<std::pair<ProcessId, ProcessId>> blocked_, flips_;
  std::map<std::pair<ProcessId, ProcessId>, LinkDelay> delays_;
  std::map<uint64_t, std::shared_ptr<Connection>> connections_;  // by age
  std::list<std::unique_ptr<Program>> programs_;
};

}  // namespace dsgd::transport

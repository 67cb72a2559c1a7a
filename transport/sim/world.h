// A simulated world: processes on hosts, a network between them, one virtual clock. All run in one thread:
// the world, or a program to which it has passed control. Their order follows from the seed alone, so a
// failure is repeated by its seed.
//
//   SimWorld world(seed);
//   ProcessId a = world.start_process("node0"), b = world.start_process("node1");
//   auto environment = world.environment(a);            // the same interfaces as the real network's
//   world.at(world.now() + 5ms, [&] { world.kill(b, Death::kReset); });
//   world.run_until([&] { return done; }, world.now() + 10s);
//
// Virtual time costs no real time. The world must outlive everything made from it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "transport/network.h"

namespace dsgd::transport {

class Kernel;

using ProcessId = uint32_t;

// One direction of a link. A packet travels `minimum` to `maximum`, now and then `slow` longer; packets of
// one connection never overtake each other.
struct LinkDelay {
  Duration minimum = std::chrono::microseconds(20);
  Duration maximum = std::chrono::microseconds(200);
  double slow_chance = 0;
  Duration slow = std::chrono::milliseconds(20);
};

struct SimOptions {
  LinkDelay delay{};                       // of links that have no delay of their own
  uint64_t bytes_per_second = 1000000000;  // of each connection
  size_t socket_buffer = 256 * 1024;       // bytes written by one side and not yet read by the other
  size_t largest_piece = 64 * 1024;        // of a chunk, written or read at a time; a multiple of 64
  // After a block, what waits is sent again as TCP does it: this long after the first attempt, then after
  // twice as long, and so on; a first packet of a connection after five times this. 0: at once.
  Duration retransmission{};
  Duration timer_lateness = std::chrono::microseconds(50);  // timers fire up to this much late
};

enum class Death {
  kReset,   // the process died: its sockets are closed by the system it ran on
  kSilent,  // its machine died: nothing comes from it any more, not even a reset
};

class SimWorld {
 public:
  explicit SimWorld(uint64_t seed, SimOptions options = {});
  ~SimWorld();
  SimWorld(const SimWorld&) = delete;

  // A process on `host`, which is made when it is first named (its addresses: the name and 10.0.x.y). Several
  // processes of one host share its ports. A process that died is restarted by starting another on its host.
  ProcessId start_process(const std::string& host);
  std::unique_ptr<Environment> environment(ProcessId process);
  std::string host_address(const std::string& host);  // "10.0.0.1"

  // Runs `program` in the process: it may block in Loop::wait while the world goes on, and other programs.
  // Only one runs at a time, and which one follows from the seed. The world's destructor requires that all
  // programs have returned.
  void start_program(ProcessId process, std::function<void()> program);
  size_t running_programs() const;

  Time now() const;
  // Runs the world until the predicate holds (looked at after each event) or its clock reaches `deadline`.
  // Returns whether the predicate holds.
  bool run_until(const std::function<bool()>& predicate, Time deadline);
  void run_for(Duration duration);
  void at(Time when, std::function<void()> action);  // an action of the test, on no process
  uint64_t random();                                 // for choices of the test
  // Digest of all that happened: events, their times, the bytes that travelled. Equal seeds give equal
  // hashes.
  uint64_t trace_hash() const;

  // ---- faults
  void set_delay(ProcessId from, ProcessId to, LinkDelay delay);
  // Packets from one to the other wait, as TCP's do, until unblock, or until they are sent again after it
  // (see SimOptions::retransmission); nothing is lost and no connection notices.
  void block(ProcessId from, ProcessId to);
  void unblock(ProcessId from, ProcessId to);
  void isolate(ProcessId process);  // blocks both directions between it and all others; rejoin undoes that
  void rejoin(ProcessId process);
  // All connections between the two break: a suffix of what is under way is lost in each direction.
  void break_connections(ProcessId one, ProcessId other);
  // One bit of the next piece of a message from one to the other arrives flipped; handshakes are spared.
  void flip_bit(ProcessId from, ProcessId to);
  bool flip_pending(ProcessId from, ProcessId to) const;  // nothing has been sent since
  // As SIGSTOP: none of its tasks runs, its sockets fill up.
  void pause(ProcessId process);
  void resume(ProcessId process);
  // None of its tasks runs again, its ports are free. Harmless when it is dead.
  void kill(ProcessId process, Death death);
  bool alive(ProcessId process) const;
  // For the end of a test: runs the events of a killed process again, with all its connections broken, so
  // that its programs return and its memory is released.
  void finish_killed(ProcessId process);

  Kernel& kernel() { return *kernel_; }

 private:
  std::unique_ptr<Kernel> kernel_;
};

}  // namespace dsgd::transport

#include "transport/sim/kernel.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "transport/sim/connection.h"
#include "transport/sim/program.h"

namespace dsgd::transport {

Kernel::Kernel(uint64_t seed, SimOptions options)
    : options_(options), random_(seed), test_random_(seed ^ 0x6a09e667f3bcc909u) {}

Kernel::~Kernel() {
  for (const auto& program : programs_) {
    if (!program->finished()) {
      std::fprintf(stderr, "simulation: the world ends while a program of process %u still runs\n",
                   program->process()->id);
      std::abort();
    }
  }
  ending_ = true;
  auto events = std::exchange(events_, {});
  for (const auto& process : processes_) std::exchange(process->held, {}).clear();
  events.clear();
  std::exchange(connections_, {}).clear();
}

uint64_t Kernel::at(Time when, Process* process, std::shared_ptr<LoopState> loop, const char* what,
                    Task task) {
  if (ending_) return 0;
  const uint64_t id = next_event_++;
  enqueue(std::max(when, now_), id, Event{process, std::move(loop), what, std::move(task)});
  return id;
}

void Kernel::enqueue(Time when, uint64_t id, Event event) {
  queue_.emplace(when, id);
  events_.emplace(id, std::move(event));
}

void Kernel::cancel(uint64_t event) {
  // The task is destroyed when the queue is consistent again, as in drop_events_of().
  if (const auto cancelled = events_.extract(event)) return;
  for (const auto& process : processes_) {
    std::erase_if(process->held, [&](const auto& entry) { return entry.first == event; });
  }
}

void Kernel::drop_events_of(const LoopState* loop) {
  // The tasks are destroyed in the order of their numbers, and after the queue is consistent again: what they
  // hold may act on the kernel.
  std::map<uint64_t, Event> dropped;
  for (auto entry = events_.begin(); entry != events_.end();) {
    const auto next = std::next(entry);
    if (entry->second.loop.get() == loop) {
      dropped.emplace(entry->first, std::move(entry->second));
      events_.erase(entry);
    }
    entry = next;
  }
  for (const auto& process : processes_) {
    for (auto& [id, event] : process->held) {
      if (event.loop.get() == loop) dropped.emplace(id, std::exchange(event, {}));
    }
    std::erase_if(process->held, [](const auto& entry) { return !entry.second.task; });
  }
  while (!dropped.empty()) dropped.erase(dropped.begin());
}

bool Kernel::step(Time limit) {
  while (!queue_.empty() && !events_.contains(queue_.top().second)) queue_.pop();  // cancelled events
  if (queue_.empty() || queue_.top().first > limit) {
    if (limit != kNever) now_ = std::max(now_, limit);
    return false;
  }
  const auto [when, id] = queue_.top();
  queue_.pop();
  Event event = std::move(events_.extract(id).mapped());
  now_ = when;
  Process* process = event.process;
  if (process != nullptr && (process->paused || (process->dead && !process->finishing))) {
    process->held.emplace_back(id, std::move(event));
    return true;
  }
  run(event);
  return true;
}

void Kernel::run(Event& event) {
  if (event.loop && !event.loop->alive) return;
  trace(static_cast<uint64_t>(now_.count()));
  trace(event.process ? event.process->id + 1 : 0);
  trace_bytes(event.what, std::strlen(event.what));
  const LoopState* outer = std::exchange(current_loop_, event.loop.get());
  event.task();
  current_loop_ = outer;
  event.task = nullptr;  // what it holds is released before a program looks
  if (event.process != nullptr) wake_programs(*event.process);
}

void Kernel::require_loop(const LoopState* loop, const char* what) const {
  if (current_loop_ == loop) return;
  std::fprintf(stderr, "simulation: %s is called off its loop\n", what);
  std::abort();
}

void Kernel::trace_bytes(const void* data, size_t n) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t word;
  for (; n >= sizeof(word); n -= sizeof(word), bytes += sizeof(word)) {
    std::memcpy(&word, bytes, sizeof(word));
    trace(word);
  }
  word = n;
  for (; n > 0; --n) word = word << 8 | *bytes++;
  trace(word);
}

Process& Kernel::start_process(const std::string& host) {
  host_address(host);
  auto process = std::make_unique<Process>();
  process->id = static_cast<ProcessId>(processes_.size());
  process->host = host;
  process->random = Random(random_.next());
  processes_.push_back(std::move(process));
  return *processes_.back();
}

std::string Kernel::host_address(const std::string& host) {
  const size_t n = hosts_.size() + 1;
  auto [entry, added] = hosts_.try_emplace(host);
  if (added) entry->second = "10.0." + std::to_string(n / 250) + "." + std::to_string(n % 250);
  return entry->second;
}

std::string Kernel::resolve(const std::string& from, const std::string& name) const {
  if (name == "localhost" || name == "::1" || name.starts_with("127.")) return from;
  for (const auto& [host, address] : hosts_) {
    if (name == host || name == address) return host;
  }
  return {};
}

uint16_t Kernel::free_port() { return next_port_++; }

bool Kernel::blocked(const Process& from, const Process& to) const {
  return !to.finishing && blocked_.contains({from.id, to.id});
}

void Kernel::set_blocked(ProcessId from, ProcessId to, bool blocked) {
  if (blocked) {
    blocked_.insert({from, to});
    return;
  }
  blocked_.erase({from, to});
  for (const auto& connection : connections()) {
    connection->to_server.kick();
    connection->to_client.kick();
  }
}

Duration Kernel::delay(const Process& from, const Process& to) {
  auto found = delays_.find({from.id, to.id});
  const LinkDelay& link = found == delays_.end() ? options_.delay : found->second;
  Duration delay = random_.between(link.minimum, link.maximum);
  if (link.slow_chance > 0 && random_.chance(link.slow_chance))
    delay += random_.between(Duration(0), link.slow);
  return delay;
}

void Kernel::add(std::shared_ptr<Connection> connection) {
  const uint64_t id = connection->id;
  connections_.emplace(id, std::move(connection));
}
void Kernel::remove(const Connection* connection) { connections_.erase(connection->id); }

std::vector<std::shared_ptr<Connection>> Kernel::connections() const {
  std::vector<std::shared_ptr<Connection>> all;
  for (const auto& entry : connections_) all.push_back(entry.second);
  return all;
}

void Kernel::pause(Process& process) { process.paused = !process.dead; }

void Kernel::resume(Process& process) {
  process.paused = false;
  if (!process.dead || process.finishing) release_held(process);
}

void Kernel::release_held(Process& process) {
  auto held = std::move(process.held);
  process.held.clear();
  for (auto& [id, event] : held) enqueue(now_, id, std::move(event));
}

void Kernel::kill(Process& process, Death death) {
  if (process.dead) return;
  process.dead = true;
  process.paused = false;
  for (const auto& connection : connections()) {
    if (connection->to_server.from() == &process) connection->to_server.cut(death == Death::kReset);
    if (connection->to_client.from() == &process) connection->to_client.cut(death == Death::kReset);
  }
}

void Kernel::finish_killed(Process& process) {
  if (!process.dead || process.finishing) return;
  process.finishing = true;
  for (const auto& connection : connections()) {
    if (connection->to_server.to() == &process) connection->to_server.cut(true);
    if (connection->to_client.to() == &process) connection->to_client.cut(true);
  }
  release_held(process);
}

void Kernel::start_program(Process& process, std::function<void()> run) {
  programs_.push_back(std::make_unique<Program>(&process, std::move(run)));
  Program* const program = programs_.back().get();
  process.programs.push_back(program);
  at(now_ + random_.between(Duration(0), std::chrono::microseconds(100)), &process, nullptr, "program",
     [program] { program->run(); });
}

size_t Kernel::running_programs() const {
  size_t running = 0;
  for (const auto& program : programs_) running += program->finished() ? 0 : 1;
  return running;
}

bool Kernel::wait(Process& process, const std::atomic<bool>& done, Time deadline) {
  if (done) return true;
  if (current_loop_ != nullptr) {
    std::fprintf(stderr, "simulation: Loop::wait is called on a loop\n");
    std::abort();
  }
  for (const auto& program : programs_) {
    if (!program->is_current()) continue;
    if (deadline <= now_) return false;
    program->awaited = &done;
    auto wake = [self = program.get()] {
      self->awaited = nullptr;
      self->deadline_event = 0;
      self->run();
    };
    if (deadline != kNever) program->deadline_event = at(deadline, &process, nullptr, "wait ends", wake);
    program->yield();
    return done;
  }
  while (!done && now_ < deadline && (step(deadline) || now_ < deadline)) {
    if (events_.empty() && deadline == kNever) break;  // nothing can end this wait any more
  }
  return done;
}

void Kernel::wake_programs(const Process& process) {
  for (Program* const program : process.programs) {
    if (program->awaited == nullptr || !*program->awaited) continue;
    program->awaited = nullptr;
    if (program->deadline_event != 0) cancel(std::exchange(program->deadline_event, 0));
    at(now_ + random_.between(Duration(0), std::chrono::microseconds(5)), program->process(), nullptr, "wake",
       [self = program] { self->run(); });
  }
}

}  // namespace dsgd::transport

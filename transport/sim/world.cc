#include "transport/sim/world.h"

#include "transport/sim/connection.h"
#include "transport/sim/kernel.h"
#include "transport/sim/sim_network.h"

namespace dsgd::transport {

SimWorld::SimWorld(uint64_t seed, SimOptions options) : kernel_(std::make_unique<Kernel>(seed, options)) {}
SimWorld::~SimWorld() = default;

ProcessId SimWorld::start_process(const std::string& host) { return kernel_->start_process(host).id; }
std::unique_ptr<Environment> SimWorld::environment(ProcessId process) {
  return std::make_unique<SimEnvironment>(*kernel_, kernel_->process(process));
}
std::string SimWorld::host_address(const std::string& host) { return kernel_->host_address(host); }

void SimWorld::start_program(ProcessId process, std::function<void()> program) {
  kernel_->start_program(kernel_->process(process), std::move(program));
}
size_t SimWorld::running_programs() const { return kernel_->running_programs(); }

Time SimWorld::now() const { return kernel_->now(); }

bool SimWorld::run_until(const std::function<bool()>& predicate, Time deadline) {
  while (!predicate()) {
    if (!kernel_->step(deadline)) return predicate();
  }
  return true;
}

void SimWorld::run_for(Duration duration) {
  const Time end = kernel_->now() + duration;
  while (kernel_->step(end)) {
  }
}

void SimWorld::at(Time when, std::function<void()> action) {
  kernel_->at(when, nullptr, nullptr, "test", std::move(action));
}
uint64_t SimWorld::random() { return kernel_->test_random().next(); }
uint64_t SimWorld::trace_hash() const { return kernel_->hash(); }

void SimWorld::set_delay(ProcessId from, ProcessId to, LinkDelay delay) {
  kernel_->set_delay(from, to, delay);
}
void SimWorld::block(ProcessId from, ProcessId to) { kernel_->set_blocked(from, to, true); }
void SimWorld::unblock(ProcessId from, ProcessId to) { kernel_->set_blocked(from, to, false); }

void SimWorld::isolate(ProcessId process) {
  for (ProcessId other = 0; other < kernel_->processes(); ++other) {
    if (other == process) continue;
    block(process, other);
    block(other, process);
  }
}
void SimWorld::rejoin(ProcessId process) {
  for (ProcessId other = 0; other < kernel_->processes(); ++other) {
    if (other == process) continue;
    unblock(process, other);
    unblock(other, process);
  }
}

void SimWorld::break_connections(ProcessId one, ProcessId other) {
  for (const auto& connection : kernel_->connections()) {
    const ProcessId client = connection->to_server.from()->id, server = connection->to_server.to()->id;
    if ((client == one && server == other) || (client == other && server == one)) {
      connection->to_server.cut(true);
      connection->to_client.cut(true);
    }
  }
}

void SimWorld::flip_bit(ProcessId from, ProcessId to) { kernel_->flip_bit(from, to); }
bool SimWorld::flip_pending(ProcessId from, ProcessId to) const { return kernel_->flip_pending(from, to); }

void SimWorld::pause(ProcessId process) { kernel_->pause(kernel_->process(process)); }
void SimWorld::resume(ProcessId process) { kernel_->resume(kernel_->process(process)); }
void SimWorld::kill(ProcessId process, Death death) { kernel_->kill(kernel_->process(process), death); }
bool SimWorld::alive(ProcessId process) const { return !kernel_->process(process).dead; }
void SimWorld::finish_killed(ProcessId process) { kernel_->finish_killed(kernel_->process(process)); }

}  // namespace dsgd::transport

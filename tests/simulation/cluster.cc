#include "cluster.h"

#include <cstdio>
#include <cstdlib>

#include "transport/sim/kernel.h"

namespace dsgd::simulation {

using namespace std::chrono_literals;
using transport::Death;
using transport::ProcessId;

namespace {

Config config_of(const ClusterOptions& options, int rank) {
  Config config;
  for (const auto& [name, algorithm] : options.registered.algorithms) config.allow("algorithm", name);
  std::map<std::string, std::string> values = {
      {"head", "node0:7700"},
      {"token", "secret"},
      {"num_workers", std::to_string(options.workers)},
      {"embed_head", !options.separate_head && rank == 0 ? "auto" : "never"},
      {"lease", "1s"},
      {"step_timeout", "60s"},
      {"init_timeout", "3s"},
      {"receive_memory", "1M"}};
  if (rank >= 0) values["rank"] = std::to_string(rank);
  for (const auto& [key, value] : options.settings) values[key] = value;
  for (const auto& [key, value] : values) {
    if (Status status = config.set(key, value); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      std::abort();
    }
  }
  return config;
}

}  // namespace

Cluster::Cluster(ClusterOptions options, Program program)
    : world(options.seed, options.network),
      options_(std::move(options)),
      program_(std::move(program)),
      calls_(static_cast<size_t>(options_.workers)),
      logs_(static_cast<size_t>(options_.workers)),
      finished_(static_cast<size_t>(options_.workers), 0) {
  for (int rank = 0; rank < options_.workers; ++rank) {
    const std::string host =
        options_.separate_head ? "node" + std::to_string(rank + 1) : "node" + std::to_string(rank);
    processes_.push_back(world.start_process(host));
    world.start_program(processes_.back(), [this, rank] { run_worker(rank); });
  }
  if (!options_.separate_head) return;
  processes_.push_back(world.start_process("node0"));
  world.start_program(processes_.back(), [this, process = processes_.back()] {
    auto head =
        HeadProcess::start(config_of(options_, -1), world.environment(process), std::make_shared<Log>());
    while (head.ok() && !stop_head_ && head.value()->wait(20ms).code() == Code::kWaitTimeout) {
    }
  });
}

Cluster::~Cluster() {
  stop_head_ = true;
  for (ProcessId process : processes_) {
    world.resume(process);
    world.kill(process, Death::kReset);
    world.bury(process);
  }
  if (!world.run_until([this] { return world.running_programs() == 0; }, world.now() + 600s)) {
    std::fprintf(stderr, "a session cannot be closed once its process is cut off\n");
    std::abort();  // its thread cannot be ended
  }
}

void Cluster::run_worker(int rank) {
  const auto at = static_cast<size_t>(rank);
  auto log = std::make_shared<Log>(
      LogLevel::kDebug, [this, at](const LogRecord& record) { logs_[at].push_back(record.message); });
  std::shared_ptr<Session> session;
  note(rank, "open", [&] {
    auto opened =
        Session::open(config_of(options_, rank), world.environment(processes_[at]), log, options_.registered);
    if (opened.ok()) session = std::move(opened).value();
    return opened.status();
  });
  if (session) {
    program_(*this, *session, rank);
    note(rank, "close", [&] { return session->close(-1ms); });
  }
  session.reset();
  finished_[at] = 1;
}

bool Cluster::note(int rank, const std::string& name, const std::function<Status()>& call) {
  NotedCall noted{name, world.now(), {}, {}};
  noted.status = call();
  noted.ended = world.now();
  calls_[static_cast<size_t>(rank)].push_back(noted);
  return noted.status.ok();
}

const NotedCall* Cluster::call(int rank, const std::string& name) const {
  const NotedCall* found = nullptr;
  for (const NotedCall& noted : calls(rank)) {
    if (noted.name == name) found = &noted;
  }
  return found;
}

const NotedCall* Cluster::first_failure(int rank) const {
  for (const NotedCall& noted : calls(rank)) {
    if (!noted.status.ok()) return &noted;
  }
  return nullptr;
}

std::string Cluster::history(int rank) const {
  std::string text;
  for (const NotedCall& noted : calls(rank)) {
    text += "  rank " + std::to_string(rank) + " " + noted.name + " at " +
            std::to_string(noted.began.count() / 1000) + " us, took " +
            std::to_string((noted.ended - noted.began).count() / 1000) +
            " us: " + code_name(noted.status.code()) + " " + std::to_string(noted.status.rank()) + " " +
            noted.status.message() + "\n";
  }
  return text;
}

ProcessId Cluster::process(int rank) const {
  return rank < 0 ? processes_.back() : processes_.at(static_cast<size_t>(rank));
}

bool Cluster::run_until_ended(transport::Duration limit) {
  return world.run_until(
      [this] {
        for (int rank = 0; rank < options_.workers; ++rank) {
          const auto& process = world.kernel().process(processes_[static_cast<size_t>(rank)]);
          if (!process.paused && !process.dead && !finished(rank)) return false;
        }
        return true;
      },
      world.now() + limit);
}

bool Cluster::run_until_noted(int rank, const std::string& name, transport::Duration limit) {
  return world.run_until([&] { return call(rank, name) != nullptr; }, world.now() + limit);
}

bool Cluster::train(Cluster& cluster, Session& session, int rank, int steps) {
  constexpr size_t kElements = 4000;
  const int64_t shape[] = {kElements};
  auto parameter = session.add_parameter("p", DType::kFloat32, shape, true);
  auto replica = session.add_replica("cpu");
  if (!parameter.ok() || !replica.ok()) std::abort();
  auto memory = session.alloc(replica.value(), parameter.value());
  if (!memory.ok()) std::abort();
  if (!cluster.note(rank, "start", [&] { return session.start(); })) return false;
  for (int k = 0; k < steps; ++k) {
    StepResult result;
    if (!cluster.note(rank, "step " + std::to_string(k), [&] { return session.step(1, &result); }))
      return false;
  }
  return true;
}

}  // namespace dsgd::simulation

// Shared by the simulated jobs of these tests: notes of calls, a head in a process of its own, the end of a
// test, and the numbers with which a user repeats a drawn job or asks for more.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/session/head_process.h"
#include "transport/sim/world.h"

namespace dsgd::simulation {

struct NotedCall {
  std::string name;
  transport::Time began{}, ended{};
  Status status;
};

// Makes a call and adds it to `calls`. True when it succeeded.
inline bool note_call(transport::SimWorld& world, std::vector<NotedCall>& calls, const std::string& name,
                      const std::function<Status()>& call) {
  NotedCall noted{name, world.now(), {}, {}};
  noted.status = call();
  noted.ended = world.now();
  calls.push_back(noted);
  return noted.status.ok();
}

// A log whose records go to `sink`. If the environment variable DSGD_SIMULATION_LOG is set, they are printed,
// too.
inline std::shared_ptr<Log> log_of(transport::SimWorld& world, const std::string& who, Log::Sink sink = {}) {
  const bool prints = std::getenv("DSGD_SIMULATION_LOG") != nullptr;
  if (!prints && !sink) return std::make_shared<Log>();
  return std::make_shared<Log>(LogLevel::kDebug, [&world, who, sink, prints](const LogRecord& record) {
    if (prints)
      std::printf("%9lld us %s: %s\n", static_cast<long long>(world.now().count() / 1000), who.c_str(),
                  record.message.c_str());
    if (sink) sink(record);
  });
}

// The program of a head's process. It returns when the head has ended, or when `stop` is set.
// Returns how the job has ended; none: the head was stopped before.
inline std::optional<Status> run_head(transport::SimWorld& world,
                                      std::unique_ptr<transport::Environment> environment,
                                      const Config& config, const bool& stop) {
  auto head = HeadProcess::start(config, std::move(environment), log_of(world, "head"));
  if (!head.ok()) std::fprintf(stderr, "the head cannot start: %s\n", head.status().message().c_str());
  while (head.ok() && !stop) {
    Status ended = head.value()->wait(std::chrono::milliseconds(20));
    if (ended.code() != Code::kWaitTimeout) return ended;
  }
  return std::nullopt;
}

// Ends a test: kills all processes and lets their programs return. `job` is for the message if one does not.
inline void end_all(transport::SimWorld& world, const std::vector<transport::ProcessId>& processes,
                    const std::string& job) {
  for (const transport::ProcessId process : processes) {
    world.resume(process);
    world.kill(process, transport::Death::kReset);
    world.finish_killed(process);
  }
  const transport::Time limit = world.now() + std::chrono::minutes(10);
  if (!world.run_until([&world] { return world.running_programs() == 0; }, limit)) {
    std::fprintf(stderr, "a session cannot be closed once its process is cut off: %s\n", job.c_str());
    std::abort();  // its thread cannot be ended
  }
}

// The number in an environment variable; `otherwise` if it is not set.
inline uint64_t environment_number(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace dsgd::simulation

// Thousands of simulated jobs with faults. Of each: every worker that lives ends every call in time, with the
// oracle's bits or with an error that names who was lost; nobody hangs; no two workers ever hold different
// values after a step.
//
//   DSGD_SIMULATION_SEED=17 simulation_tests jobs_test     one job, with the calls of its workers
//   DSGD_SIMULATION_JOBS=100000 simulation_tests jobs_test
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <set>

#include "core/session/session.h"
#include "job.h"
#include "tests/unit/sanitizer.h"
#include "transport/sim/world.h"

namespace dsgd::simulation::jobs_test {
namespace {

using namespace std::chrono_literals;

constexpr transport::Duration kSlack = 100ms;  // beyond a deadline

std::string seconds(transport::Duration d) {
  return std::to_string(static_cast<double>(d.count()) * 1e-9) + " s";
}

class Checker {
 public:
  Checker(const JobSpec& spec, const JobOutcome& outcome) : spec_(spec), outcome_(outcome) {}

  std::vector<std::string> problems() {
    for (int w = 0; w < spec_.shape.workers; ++w) worker(w);
    return problems_;
  }

 private:
  bool dead(int process) const {
    return outcome_.fault_at && process == spec_.victim &&
           (spec_.fault == Fault::kKill || spec_.fault == Fault::kMachineDies);
  }
  // Cut off or stopped for so long that it sees the others as lost, and may say so.
  bool apart(int process) const {
    return outcome_.fault_at && process == spec_.victim &&
           (spec_.fault == Fault::kIsolate || spec_.fault == Fault::kLongPause);
  }

  void worker(int w) {
    const WorkerOutcome& seen = outcome_.workers[static_cast<size_t>(w)];
    for (const auto& what : seen.wrong) problem(w, what + " differs from the oracle");
    if (dead(w)) return;
    if (!seen.finished) {
      problem(w, "hangs after " + (seen.calls.empty() ? std::string("its start") : seen.calls.back().name));
    }
    bool failed = false;
    for (const NotedCall& call : seen.calls) {
      time(w, call);
      if (call.status.ok() || call.name == "close") {
        if (failed && call.name != "close") problem(w, call.name + " succeeds on a broken session");
        continue;
      }
      // A step that failed on some workers only leaves the session torn. If it failed on all alike, the next
      // step reports the same failure.
      const bool torn = call.name == kAfterAFailedStep && call.status.code() == Code::kTorn;
      if (!failed || (call.name == kAfterAFailedStep && !torn)) blame(w, call);
      failed = true;
    }
    if (!failed && seen.finished && seen.calls.size() < 4) problem(w, "ended without training");
  }

  void time(int w, const NotedCall& call) {
    transport::Duration limit = call.name == "open"    ? kInitTimeout
                                : call.name == "close" ? 1s + kLease + 100ms
                                                       : kStepTimeout;
    // A death is noticed within a lease, whatever the timeout of the step is.
    const bool death = outcome_.fault_at && !apart(w) &&
                       (spec_.fault == Fault::kKill || spec_.fault == Fault::kMachineDies ||
                        spec_.fault == Fault::kLongPause || spec_.fault == Fault::kIsolate);
    transport::Time from = call.began;
    if (death && call.name != "open" && call.name != "close") {
      limit = std::min(limit, kLease);
      from = std::max(from, *outcome_.fault_at);
    }
    if (apart(w) && spec_.fault == Fault::kLongPause) limit += kLongPause;
    if (spec_.fault == Fault::kShortPause && w == spec_.victim) limit += kLease / 3;
    if (call.ended > from + limit + kSlack) {
      problem(w,
              call.name + " took " + seconds(call.ended - from) + ", allowed are " + seconds(limit + kSlack));
    }
  }

  void blame(int w, const NotedCall& call) {
    const Status& status = call.status;
    const std::string text = call.name + " failed: " + code_name(status.code()) + " rank " +
                             std::to_string(status.rank()) + ": " + status.message();
    if (harmless(spec_.fault) || !outcome_.fault_at) return problem(w, "no fault, but " + text);
    if (status.message().empty()) return problem(w, "the error has no message: " + text);
    if (call.name != "open" && status.rank() >= 0 &&
        status.host().empty())  // a worker that has not joined has none
      return problem(w, "the error names no host: " + text);
    const bool corrupted = status.code() == Code::kCorrupted;
    if (spec_.fault == Fault::kFlip && !corrupted && call.name != "open")
      return problem(w, "wrong code for a flipped bit: " + text);
    switch (status.code()) {
      case Code::kTimeout:
        if (call.name == "get") return;  // of an object that nobody could put
        break;
      case Code::kWorkerLost:
      case Code::kUnreachable:
      case Code::kAborted:
        break;
      case Code::kState:
        if (status.message().find("the job at this head is over") != std::string::npos) break;
        return problem(w, "wrong code: " + text);
      case Code::kCorrupted:
        if (spec_.fault == Fault::kFlip) break;
        return problem(w, "wrong code: " + text);
      default:
        return problem(w, "wrong code: " + text);
    }
    if (call.name == "open" || apart(w)) return;
    std::set<int> suspects = {spec_.victim};
    if (spec_.fault == Fault::kBreak || spec_.fault == Fault::kFlip || spec_.fault == Fault::kLongBlock)
      suspects.insert(spec_.other);
    if (suspects.contains(spec_.shape.workers)) suspects.insert(-1);  // the separate head has no rank
    if (!suspects.contains(status.rank())) problem(w, "the error names the wrong worker: " + text);
  }

  void problem(int w, const std::string& what) {
    problems_.push_back("worker " + std::to_string(w) + ": " + what);
  }

  const JobSpec& spec_;
  const JobOutcome& outcome_;
  std::vector<std::string> problems_;
};

void print(const JobSpec& spec, const JobOutcome& outcome) {
  std::cerr << spec.describe() << "\n";
  const transport::Time start =
      outcome.workers[0].calls.empty() ? outcome.ended : outcome.workers[0].calls[0].began;
  if (outcome.fault_at) std::cerr << "  fault at " << seconds(*outcome.fault_at - start) << "\n";
  for (size_t w = 0; w < outcome.workers.size(); ++w) {
    for (const NotedCall& call : outcome.workers[w].calls) {
      std::cerr << "  worker " << w << " " << call.name << " " << seconds(call.began - start) << " + "
                << seconds(call.ended - call.began) << " " << code_name(call.status.code()) << " rank "
                << call.status.rank() << " " << call.status.message() << "\n";
    }
  }
}

TEST(Simulation, EveryWorkerEndsWithTheRightBitsOrTheRightError) {
  const uint64_t one = environment_number("DSGD_SIMULATION_SEED", 0);
  const uint64_t first = one != 0 ? one : 1,
                 jobs = one != 0
                            ? 1
                            : environment_number("DSGD_SIMULATION_JOBS", 2000 / dsgd_test::one_of(4, 20));
  std::map<std::string, int> kinds;
  int failures = 0, whole = 0;
  for (uint64_t seed = first; seed < first + jobs && failures < 5; ++seed) {
    const JobSpec spec = JobSpec::draw(seed);
    const JobOutcome outcome = run_job(spec);
    if (one != 0) print(spec, outcome);
    for (const auto& problem : Checker(spec, outcome).problems()) {
      ADD_FAILURE() << spec.describe() << "\n  " << problem << "\n  repeat it: DSGD_SIMULATION_SEED=" << seed;
      ++failures;
    }
    bool all_ok = true;
    for (const auto& worker : outcome.workers) {
      for (const auto& call : worker.calls) all_ok &= call.status.ok();
    }
    whole += all_ok ? 1 : 0;
    ++kinds[std::string(fault_name(spec.fault)) + (all_ok ? ", all well" : ", errors")];
  }
  for (const auto& [kind, n] : kinds) std::cerr << "  " << kind << ": " << n << "\n";
  if (one == 0 && failures == 0 && jobs >= 100) {
    EXPECT_GT(whole, 0);
    EXPECT_GT(kinds["kill, errors"], 0) << "the faults must hurt, or nothing is tested";
    EXPECT_GT(kinds["break, errors"], 0);
    EXPECT_GT(kinds["flip, errors"], 0);
  }
}

// Returns the message of a worker of a job of two about its own configuration; the other worker is on another
// machine.
std::string refusal(const std::string& head, const std::string& token) {
  using namespace std::chrono_literals;
  transport::SimWorld world(1, {});
  std::string message;
  bool ended = false;
  const auto process = world.start_process("node0");
  world.start_process("node1");
  world.start_program(process, [&] {
    Config config;
    for (const auto& [key, value] : std::map<std::string, std::string>{
             {"head", head}, {"token", token}, {"num_workers", "2"}, {"init_timeout", "1s"}}) {
      EXPECT_TRUE(config.set(key, value).ok());
    }
    auto session = Session::open(config, world.environment(process), std::make_shared<Log>());
    EXPECT_FALSE(session.ok());
    message = session.status().message();
    ended = true;
  });
  EXPECT_TRUE(world.run_until([&] { return ended; }, world.now() + 60s));
  return message;
}

TEST(Simulation, AWorkerBecomesTheHeadOnlyWhereItIsAndWithAToken) {
  EXPECT_NE(refusal("node0:7700", "").find("`token` is not set"), std::string::npos)
      << refusal("node0:7700", "");
  EXPECT_NE(refusal("node0:7700", "secret").find("1 of 2 workers have joined"), std::string::npos)
      << refusal("node0:7700", "secret");
  EXPECT_NE(refusal("node1:7700", "").find("not on 10.0.0.1; set `token`"), std::string::npos)
      << refusal("node1:7700", "");
  EXPECT_NE(refusal("node1:7700", "secret").find("node1:7700"), std::string::npos);
  EXPECT_EQ(refusal("node1:7700", "secret").find("cannot listen"), std::string::npos)
      << refusal("node1:7700", "secret");
}

TEST(Simulation, TheSameSeedIsTheSameJob) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const JobSpec spec = JobSpec::draw(seed);
    EXPECT_EQ(run_job(spec).trace_hash, run_job(spec).trace_hash) << spec.describe();
  }
}

}  // namespace
}  // namespace dsgd::simulation::jobs_test

// Every pair of different calls, made by workers of one job at the same place of their sequence of calls: no
// worker succeeds, all of them report the same sentence, which shows both sides' values, and the session goes
// on. Parts without elements and pairs of workers that exchange no data are where this is easily missed.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster.h"
#include "registered.h"
#include "tests/unit/begin.h"
#include "tests/unit/sanitizer.h"
#include "tests/unit/wait_for.h"

namespace dsgd::simulation::disagreement_test {
namespace {

using namespace std::chrono_literals;
using Mode = Session::Mode;

// The stride over pairs of calls. Each call has 38 or 40 others. A divisor of these, such as 5, would skip
// the same calls in each row.
constexpr int kOneOf = 11, kOneOfSanitized = 17;
constexpr size_t kLarge = 70'000;  // elements: more bytes than travel in one hop

// One worker's call, with buffers of its own.
struct Call {
  std::string text;  // as a message is to show it
  std::function<Status(Session&, std::vector<double>& memory)> make;
  std::string strategy = {};  // that a dsgd_strategy_set asks for
};

Call barrier() {
  return {"barrier", [](Session& session, auto&) { return wait_for(session, session.barrier(Mode::kWait)); }};
}

std::string elements(size_t count) {
  return std::to_string(count) + (count == 1 ? " element)" : " elements)");
}

Call all_reduce(size_t count, DType dtype = DType::kFloat32, Reduction reduction = Reduction::kSum) {
  return {std::string("all-reduce (") + dtype_name(dtype) + ", " + reduction_name(reduction) + ", " +
              elements(count),
          [=](Session& session, std::vector<double>& memory) {
            return wait_for(session, begin(session.allreduce(memory.data(), memory.data(),
                                                             count * dtype_size(dtype), dtype, reduction),
                                           Mode::kWait));
          }};
}

Call broadcast(size_t count, int32_t root, DType dtype = DType::kUint8) {
  return {std::string("broadcast (") + dtype_name(dtype) + ", root " + std::to_string(root) + ", " +
              elements(count),
          [=](Session& session, std::vector<double>& memory) {
            return wait_for(
                session,
                begin(session.broadcast(memory.data(), count * dtype_size(dtype), dtype, root), Mode::kWait));
          }};
}

std::string counts_text(const std::vector<size_t>& counts) {
  std::string text;
  for (size_t count : counts) text += (text.empty() ? "" : ", ") + std::to_string(count);
  return "counts [" + text + "])";
}

Call all_gather(const std::vector<size_t>& counts, DType dtype = DType::kInt64) {
  return {std::string("all-gather (") + dtype_name(dtype) + ", " + counts_text(counts),
          [=](Session& session, std::vector<double>& memory) {
            const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0}),
                         element = dtype_size(dtype);
            const size_t mine = counts[static_cast<size_t>(session.rank())];
            return wait_for(session,
                            begin(session.allgather(memory.data() + memory.size() / 2, mine * element,
                                                    memory.data(), total * element, counts.data(), dtype),
                                  Mode::kWait));
          }};
}

Call reduce_scatter(const std::vector<size_t>& counts, DType dtype = DType::kInt64,
                    Reduction reduction = Reduction::kSum) {
  return {std::string("reduce-scatter (") + dtype_name(dtype) + ", " + reduction_name(reduction) + ", " +
              counts_text(counts),
          [=](Session& session, std::vector<double>& memory) {
            const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0}),
                         element = dtype_size(dtype);
            const size_t mine = counts[static_cast<size_t>(session.rank())];
            return wait_for(session,
                            begin(session.reduce_scatter(memory.data(), total * element,
                                                         memory.data() + memory.size() / 2, mine * element,
                                                         counts.data(), dtype, reduction),
                                  Mode::kWait));
          }};
}

Call step() {
  return {"dsgd_step", [](Session& session, auto&) { return session.step(1, nullptr); }};
}

Call start() {
  return {"dsgd_start", [](Session& session, auto&) { return session.start(); }};
}

Call set_strategy(const std::string& name) {
  return {"dsgd_strategy_set", [=](Session& session, auto&) { return session.set_strategy(name, ""); }, name};
}

std::vector<Call> calls(int32_t workers, bool started) {
  const auto counts = [workers](size_t first, size_t others, size_t last) {
    std::vector<size_t> all(static_cast<size_t>(workers), others);
    all.front() = first;
    all.back() = last;
    return all;
  };
  std::vector<Call> table = {
      barrier(),
      all_reduce(0),
      all_reduce(0, DType::kInt32),
      all_reduce(0, DType::kFloat32, Reduction::kMax),
      all_reduce(1),
      all_reduce(5),
      all_reduce(5, DType::kFloat32, Reduction::kMax),
      all_reduce(5, DType::kInt32),
      all_reduce(5, DType::kFloat16),
      all_reduce(kLarge),
      all_reduce(kLarge, DType::kFloat32, Reduction::kMean),
      all_reduce(kLarge + 1),
      broadcast(0, 0),
      broadcast(0, 1),
      broadcast(0, 0, DType::kInt32),
      broadcast(1, 0),
      broadcast(1, workers - 1),
      broadcast(2, 0),
      broadcast(2 * kLarge, 0),
      broadcast(2 * kLarge, 1),
      broadcast(2 * kLarge + 1, 0),
      all_gather(counts(0, 0, 0)),
      all_gather(counts(0, 0, 0), DType::kFloat32),
      all_gather(counts(7, 0, 0)),
      all_gather(counts(0, 0, 7)),
      all_gather(counts(7, 0, 0), DType::kFloat64),
      all_gather(counts(3, 2, 5)),
      all_gather(counts(5, 2, 3)),
      all_gather(counts(kLarge, 0, 0)),
      all_gather(counts(0, 0, kLarge)),
      reduce_scatter(counts(0, 0, 0)),
      reduce_scatter(counts(0, 0, 0), DType::kInt64, Reduction::kMax),
      reduce_scatter(counts(5, 0, 0)),
      reduce_scatter(counts(0, 0, 5)),
      reduce_scatter(counts(0, 0, 5), DType::kFloat32),
      reduce_scatter(counts(3, 2, 5)),
      reduce_scatter(counts(kLarge, 0, 0)),
      reduce_scatter(counts(0, 0, kLarge)),
  };
  if (started) {
    table.push_back(step());
    table.push_back(set_strategy("simple"));
    table.push_back(set_strategy("ps"));
  } else {
    table.push_back(start());
  }
  return table;
}

void run_job(ClusterOptions options, const Cluster::Program& program) {
  options.seed = 7;
  options.settings.insert({{"step_timeout", "5s"}, {"lease", "60s"}, {"receive_memory", "256M"}});
  options.registered = registered();
  Cluster cluster(std::move(options), program);
  EXPECT_TRUE(cluster.run_until_ended(24h * 365));
}

void add_model(Session& session) {
  const int64_t count = 100;
  const auto parameter = session.add_parameter("weight", DType::kFloat32, {&count, 1}, true);
  (void)session.alloc(session.add_replica("cpu").value(), parameter.value()).value();
}

struct Outcome {
  std::vector<Status> of;  // by rank
};

// Returns the problem with an outcome; empty: none.
std::string wrong(const Outcome& outcome, const std::vector<const Call*>& called) {
  const std::string& first = outcome.of[0].message();
  for (size_t rank = 0; rank < outcome.of.size(); ++rank) {
    const Status& status = outcome.of[rank];
    const std::string who = "rank " + std::to_string(rank) + ": ";
    if (status.ok()) return who + "OK";
    if (status.code() != Code::kMismatch) return who + code_name(status.code()) + ' ' + status.message();
    if (status.message() != first)
      return who + "another sentence than rank 0: " + first + " | " + status.message();
    if (status.rank() < 0 || status.rank() != outcome.of[0].rank())
      return who + "names rank " + std::to_string(status.rank());
  }
  // "rank A calls TEXT, rank B calls TEXT" or "rank A asks for STRATEGY, rank B for STRATEGY", of two that
  // differ.
  for (size_t a = 0; a < called.size(); ++a) {
    for (size_t b = a + 1; b < called.size(); ++b) {
      if (called[a] == called[b]) continue;
      const std::string one = "rank " + std::to_string(a), other = ", rank " + std::to_string(b);
      const std::string both = called[a]->text != called[b]->text
                                   ? one + " calls " + called[a]->text + other + " calls " + called[b]->text
                                   : one + " asks for '" + called[a]->strategy + "'" + other + " for '" +
                                         called[b]->strategy + "'";
      if (first.find(both) != std::string::npos) return {};
    }
  }
  return "the values are not shown: " + first;
}

// `choose(k, rank)`: index into the table of the k-th round's call. All rounds are made in one session each,
// with a barrier between them.
void check_rounds(int32_t workers, const std::map<std::string, std::string>& settings, bool started,
                  size_t rounds, const std::function<size_t(size_t round, int32_t rank)>& choose) {
  const std::vector<Call> table = calls(workers, started);
  std::vector<Outcome> outcomes(rounds, Outcome{std::vector<Status>(static_cast<size_t>(workers))});
  std::vector<std::string> after(rounds);
  run_job({.workers = workers, .settings = settings}, [&](Cluster&, Session& session, int rank) {
    std::vector<double> memory(4 * (kLarge + 2));
    add_model(session);
    if (started) {
      const Status status = session.start();
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (size_t round = 0; round < rounds; ++round) {
      outcomes[round].of[static_cast<size_t>(rank)] = table[choose(round, rank)].make(session, memory);
      const Status goes_on = wait_for(session, session.barrier(Mode::kWait));
      if (!goes_on.ok() && after[round].empty()) after[round] = goes_on.message();
    }
  });
  size_t failures = 0;
  for (size_t round = 0; round < rounds; ++round) {
    std::vector<const Call*> called;
    std::string texts;
    for (int32_t rank = 0; rank < workers; ++rank) {
      called.push_back(&table[choose(round, rank)]);
      texts += "\n  rank " + std::to_string(rank) + ": " + called.back()->text;
    }
    const std::string problem =
        after[round].empty() ? wrong(outcomes[round], called) : "the session does not go on: " + after[round];
    if (!problem.empty() && ++failures <= 5) ADD_FAILURE() << "calls:" << texts << "\n" << problem;
  }
  EXPECT_EQ(failures, 0u) << "of " << rounds;
}

class DifferentCalls : public testing::TestWithParam<int> {};

// One worker calls something else than all others.
void check_pairs(int32_t workers, const std::map<std::string, std::string>& settings, bool started) {
  struct Round {
    size_t usual, other;
    int32_t odd;
  };
  const size_t kinds = calls(workers, started).size();
  std::vector<Round> rounds;
  dsgd_test::Thinned pairs(kOneOf, kOneOfSanitized);
  for (size_t usual = 0; usual < kinds; ++usual) {
    for (size_t other = 0; other < kinds; ++other) {
      if (usual == other || pairs.skip_next()) continue;
      for (int32_t odd = 0; odd < (workers == 2 ? 1 : workers); ++odd) rounds.push_back({usual, other, odd});
    }
  }
  check_rounds(workers, settings, started, rounds.size(), [&](size_t round, int32_t rank) {
    return rank == rounds[round].odd ? rounds[round].other : rounds[round].usual;
  });
}

TEST_P(DifferentCalls, OfOneWorkerAreReportedByAllInOneSentence) { check_pairs(GetParam(), {}, true); }

TEST_P(DifferentCalls, AreFoundWithEveryAlgorithm) {
  for (const char* algorithm : {"direct", "halving_doubling", "ring", "doubling"}) {
    SCOPED_TRACE(algorithm);
    check_pairs(GetParam(), {{"algorithm", algorithm}}, false);
  }
}

TEST_P(DifferentCalls, OfAllWorkersAreReportedInOneSentence) {
  const int32_t workers = GetParam();
  const size_t kinds = calls(workers, true).size();
  check_rounds(workers, {}, true, static_cast<size_t>(1000 / dsgd_test::one_of(kOneOf, kOneOfSanitized)),
               [&](size_t round, int32_t rank) {
                 return (round * 7 +
                         static_cast<size_t>(rank) * (1 + round % (kinds / static_cast<size_t>(workers)))) %
                        kinds;
               });
}

INSTANTIATE_TEST_SUITE_P(Workers, DifferentCalls, testing::Values(2, 3, 4),
                         [](const auto& info) { return testing::PrintToString(info.param) + "Workers"; });

TEST(Disagreement, OnSettingsOfWorkersIsShown) {
  const struct {
    std::map<std::string, std::string> usual, other;
    Call call;
    std::string said;
  } cases[] = {
      {{{"algorithm", "ring"}}, {{"algorithm", "direct"}}, all_reduce(kLarge), "with algorithm ring"},
      {{{"algorithm", "ring"}}, {{"algorithm", "auto"}}, all_reduce(5), "with algorithm one hop"},
      {{{"algorithm", "doubling"}}, {{"algorithm", "auto"}}, all_reduce(5), "with algorithm registered"},
      {{{"receive_memory", "1M"}}, {}, all_reduce(kLarge), "bytes (from receive_memory)"},
      {{{"receive_memory", "1M"}}, {}, broadcast(kLarge, 0), "bytes (from receive_memory)"},
  };
  for (const auto& c : cases) {
    for (int32_t odd = 0; odd < 3; ++odd) {
      SCOPED_TRACE(c.said + ", rank " + std::to_string(odd));
      std::vector<Status> of(3);
      std::map<int, std::map<std::string, std::string>> settings;
      for (int32_t rank = 0; rank < 3; ++rank) settings[rank] = rank == odd ? c.other : c.usual;
      run_job({.workers = 3, .own_settings = settings}, [&](Cluster&, Session& session, int rank) {
        std::vector<double> memory(2 * kLarge);
        of[static_cast<size_t>(rank)] = c.call.make(session, memory);
        const Status goes_on = wait_for(session, session.barrier(Mode::kWait));
        EXPECT_TRUE(goes_on.ok()) << goes_on.message();
      });
      for (const Status& status : of) {
        EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
        EXPECT_EQ(status.message(), of[0].message());
        EXPECT_NE(status.message().find(c.said), std::string::npos) << status.message();
      }
    }
  }
}

// A worker that calls late learns the same sentence.
TEST(Disagreement, IsToldToAWorkerThatCallsLater) {
  std::vector<Status> of(3);
  for (int32_t late = 0; late < 3; ++late) {
    SCOPED_TRACE(late);
    run_job({.workers = 3}, [&](Cluster& cluster, Session& session, int rank) {
      std::vector<double> memory(100);
      if (rank == late) cluster.pass_time(rank, 1s);
      const Call call =
          all_gather(rank == (late + 1) % 3 ? std::vector<size_t>{7, 0, 0} : std::vector<size_t>{0, 7, 0});
      of[static_cast<size_t>(rank)] = call.make(session, memory);
      if (rank != late) cluster.pass_time(rank, 1s);
    });
    for (const Status& status : of) {
      EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
      EXPECT_EQ(status.message(), of[0].message());
      EXPECT_NE(status.message().find("[7, 0, 0]"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("[0, 7, 0]"), std::string::npos) << status.message();
    }
  }
}

}  // namespace
}  // namespace dsgd::simulation::disagreement_test

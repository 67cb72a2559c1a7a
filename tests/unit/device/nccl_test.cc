// Sessions whose GPUs add up among themselves: on the fake runtime and the fake NCCL, whose members are all
// in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <future>

#include "tests/unit/device/fake_cuda.h"
#include "tests/unit/device/fake_nccl.h"
#include "tests/unit/device/trainer.h"
#include "tests/unit/sanitizer.h"

namespace dsgd {
namespace {

using namespace std::chrono_literals;
using dsgd_test::kSanitized;
using testing::AllOf;
using testing::HasSubstr;
using Devices = std::vector<std::vector<std::string>>;

class Nccl : public testing::Test {
 protected:
  Nccl() : before_(fake_cuda::alive()) { fake_cuda::set_devices(8); }
  ~Nccl() override {
    const fake_cuda::Alive after = fake_cuda::alive();
    EXPECT_EQ(after.streams, before_.streams);
    EXPECT_EQ(after.events, before_.events);
    EXPECT_EQ(after.allocations, before_.allocations);
    EXPECT_EQ(fake_nccl::alive(), 0);
  }

 private:
  const fake_cuda::Alive before_;
};

Devices on_host(Devices devices) {
  for (auto& worker : devices) worker.assign(worker.size(), "cpu");
  return devices;
}

struct Place {
  const char* name;
  Devices devices;
  std::vector<std::string> nodes;
};

const std::vector<Place>& places() {
  static const std::vector<Place> places = {
      {"one worker", {{"cuda:0", "cuda:1", "cuda:0", "cuda:2"}}, {}},
      {"one node", {{"cuda:0"}, {"cuda:1"}}, {}},
      {"one node, several each", {{"cuda:0", "cuda:1"}, {"cuda:2"}, {"cuda:4", "cuda:3", "cuda:4"}}, {}},
      {"two nodes", {{"cuda:0"}, {"cuda:1"}, {"cuda:2"}, {"cuda:3"}}, {"a", "a", "b", "b"}},
      {"two nodes, in turn", {{"cuda:0"}, {"cuda:1"}, {"cuda:2"}, {"cuda:3"}}, {"a", "b", "a", "b"}},
      {"unlike nodes",
       {{"cuda:0", "cuda:5"}, {"cuda:1"}, {"cuda:2"}, {"cuda:3"}, {"cuda:4"}},
       {"a", "b", "a", "b", "c"}},
      {"a worker on the host", {{"cuda:0"}, {"cpu"}, {"cuda:1"}}, {}},
  };
  if (kSanitized) {
    static const std::vector<Place> some = {places[0], places[2], places[5], places[6]};
    return some;
  }
  return places;
}

// The error of start, of each rank.
std::vector<Status> start_errors(const Devices& devices, const Settings& settings) {
  std::vector<Status> errors(devices.size());
  run_ranks(devices.size(), settings, [&](int rank, const Settings& mine) {
    Trainer trainer(open(mine), devices[static_cast<size_t>(rank)]);
    errors[static_cast<size_t>(rank)] = trainer.session->start();
    (void)trainer.session->close(10s);
  });
  return errors;
}

// Before all others: NCCL is looked for until one is found that can be used, and then no more.
TEST_F(Nccl, AaaOneThatIsTooOldIsAnErrorIfItIsDemandedAndElseNotUsed) {
  const Devices devices = {{"cuda:0"}, {"cuda:1"}};
  fake_nccl::set_version(21701);
  for (const Status& error : start_errors(devices, {{"algorithm", "nccl"}})) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("NCCL 2.17.1 "), HasSubstr("is too old; NCCL 2.18"),
                                       HasSubstr("or later is needed")));
  }
  const int before = fake_nccl::ended();
  EXPECT_EQ(train({devices, {"allreduce"}, 3, {}}), train({on_host(devices), {"allreduce"}, 3, {}}));
  EXPECT_EQ(fake_nccl::ended(), before);
  fake_nccl::set_version(22809);
}

// Integers and weights that are too, or halves and quarters: sums are exact in any order; only the mean
// rounds, alike.
TEST_F(Nccl, GivesTheValuesOfTheHostWhereverGpusAre) {
  for (const Place& place : places()) {
    for (const std::vector<std::string>& strategies : std::vector<std::vector<std::string>>{
             {"allreduce"}, {"ps"}, {"simple"}, {"ps", "allreduce", "simple", "allreduce", "ps"}}) {
      for (const char* internode : {"rpc", "nccl"}) {
        SCOPED_TRACE(std::string(place.name) + ", " + strategies[0] + ", internode=" + internode);
        const std::string absent = internode == std::string("nccl") ? "zero" : "skip";
        Job job{place.devices,
                strategies,
                6,
                {{"bucket_size", "4K"},
                 {"absent", absent},
                 {"internode", internode},
                 {"algorithm", "nccl"},
                 {"gradient_norm", "1"}},
                place.nodes};
        job.absent = [](int step, int rank, size_t tensor) {
          return (step == 2 && tensor == 1) || (step + rank + static_cast<int>(tensor)) % 4 == 0;
        };
        const int before = fake_nccl::ended();
        std::vector<uint64_t> digests;
        std::vector<double> norms, expected_norms;
        const auto values = train(job, &digests, &norms);
        EXPECT_GE(fake_nccl::ended() - before, 6);
        job.devices = on_host(job.devices);
        job.settings = {{"bucket_size", "4K"}, {"absent", absent}, {"gradient_norm", "1"}};
        const auto expected = train(job, nullptr, &expected_norms);
        for (size_t step = 0; step < norms.size(); ++step)
          EXPECT_NEAR(norms[step], expected_norms[step], 1e-6 * expected_norms[step]);
        for (size_t w = 0; w < values.size(); ++w) {
          EXPECT_EQ(values[w], expected[w]) << "rank " << w;
          EXPECT_EQ(digests[w], digests[0]);
        }
      }
    }
  }
}

// Each step is clipped, by a norm that devices compute from the parts of the sums that they have.
TEST_F(Nccl, ClipsAsTheHostDoesWhereverGpusAre) {
  for (const Place& place : places()) {
    for (const std::vector<std::string>& strategies :
         std::vector<std::vector<std::string>>{{"allreduce"}, {"ps"}, {"simple", "ps", "allreduce"}}) {
      for (const char* internode : {"rpc", "nccl"}) {
        SCOPED_TRACE(std::string(place.name) + ", " + strategies[0] + ", internode=" + internode);
        Job job{place.devices,
                strategies,
                4,
                {{"bucket_size", "4K"}, {"internode", internode}, {"algorithm", "nccl"}},
                place.nodes};
        job.options = "lr=0.4 momentum=0.5 clip_norm=1";
        std::vector<double> norms, expected_norms;
        const auto values = train(job, nullptr, &norms);
        job.devices = on_host(job.devices);
        job.settings = {{"bucket_size", "4K"}};
        const auto expected = train(job, nullptr, &expected_norms);
        expect_near(norms, expected_norms, values, expected);
        ASSERT_EQ(norms.size(), 4u);
        for (const double norm : norms) EXPECT_GT(norm, 10);
      }
    }
  }
}

// NCCL adds up in an order of its own: the sums of R replicas differ from the host's by (R - 1) eps sum(|c
// g|) at most.
TEST_F(Nccl, DiffersFromTheHostByNoMoreThanAnotherOrderOfSummationDoes) {
  constexpr int kSteps = 3;
  constexpr double kRate = 0.5, kEps = std::numeric_limits<float>::epsilon();
  bool any = false;
  for (const Place& place : places()) {
    for (const char* strategy : {"allreduce", "ps", "simple"}) {
      SCOPED_TRACE(std::string(place.name) + ", " + strategy);
      Job job{place.devices, {strategy}, kSteps, {{"bucket_size", "4K"}, {"algorithm", "nccl"}}, place.nodes};
      job.options = "lr=0.5";
      job.wide = true;
      std::vector<uint64_t> digests;
      const auto values = train(job, &digests);
      job.devices = on_host(job.devices);
      job.settings = {{"bucket_size", "4K"}};
      const std::vector<float> expected = train(job)[0];
      for (uint64_t digest : digests) EXPECT_EQ(digest, digests[0]);
      ASSERT_EQ(values[0].size(), expected.size());
      size_t at = 0;
      for (size_t count : {3, 5000, 17, 1}) {
        for (size_t i = 0; i < count; ++i, ++at) {
          double bound = 0;
          for (int step = 0; step < kSteps; ++step) {
            double magnitude = 0, weights = 0;
            size_t all = 0;
            for (size_t w = 0; w < place.devices.size(); ++w) {
              const double weight = static_cast<double>(1 + w) / static_cast<double>(place.devices[w].size());
              for (size_t r = 0; r < place.devices[w].size(); ++r, ++all) {
                magnitude += weight * std::abs(Trainer::gradient(step, static_cast<int>(w), r, i, true));
                weights += weight;
              }
            }
            // And what the two differ by may round the mean, its product with the rate, and the value the
            // other way.
            bound += kRate * magnitude / weights * kEps * (static_cast<double>(all) - 1 + 2) +
                     kEps * (4 + kRate * kSteps * magnitude / weights);
          }
          ASSERT_NEAR(values[0][at], expected[at], bound) << "element " << at;
          any = any || values[0][at] != expected[at];
        }
      }
    }
  }
  EXPECT_TRUE(any) << "the order of summation makes no difference here";
}

// All workers find the same sums not to be finite.
TEST_F(Nccl, AStepWhoseGradientsOverflowIsLeftOutByAll) {
  for (const Place& place : places()) {
    for (const std::vector<std::string>& strategies :
         std::vector<std::vector<std::string>>{{"allreduce"}, {"ps"}, {"simple", "ps", "allreduce"}}) {
      SCOPED_TRACE(std::string(place.name) + ", " + strategies[0]);
      Job job{place.devices,
              strategies,
              6,
              {{"bucket_size", "4K"}, {"algorithm", "nccl"}, {"loss_scale", "256"}},
              place.nodes};
      job.overflows = [](int step) { return step == 1 || step == 4; };
      const auto values = train(job);
      job.devices = on_host(job.devices);
      job.settings = {{"bucket_size", "4K"}};
      EXPECT_EQ(values, train(job));
    }
  }
}

TEST_F(Nccl, OnlyTheDevicesOfReplicasAreTouched) {
  (void)fake_cuda::take_devices_used();
  train({{{"cuda:2", "cuda:3"}, {"cuda:5"}}, {"allreduce", "ps"}, 4, {{"algorithm", "nccl"}}});
  EXPECT_EQ(fake_cuda::take_devices_used(), (std::set<int>{2, 3, 5}));
}

TEST_F(Nccl, IsLeftOutWhereTheHostComputesOrTheUserWantsSo) {
  const Devices devices = {{"cuda:0"}, {"cuda:1"}};
  for (const Settings& settings : {Settings{{"reproducible", "1"}}, Settings{{"algorithm", "direct"}},
                                   Settings{{"algorithm", "ring"}}}) {
    const int before = fake_nccl::ended();
    EXPECT_EQ(train({devices, {"allreduce"}, 3, settings}),
              train({on_host(devices), {"allreduce"}, 3, settings}));
    EXPECT_EQ(fake_nccl::ended(), before);
  }
}

TEST_F(Nccl, WhatStandsInItsWayIsAnErrorIfItIsDemandedAndElseGoesThroughTheHost) {
  struct Case {
    Devices devices;
    Settings settings;
    Code code;
    const char* says;
  };
  const std::vector<Case> cases = {
      {{{"cpu"}, {"cpu"}}, {}, Code::kInvalidArgument, "no worker has a replica on a GPU; use auto"},
      {{{"cuda:0"}, {"cuda:0"}}, {}, Code::kUnsupported, "rank 0 and rank 1 use one GPU"},
      {{{"cuda:0"}, {"cpu", "cuda:1"}},
       {},
       Code::kUnsupported,
       "rank 1: this worker has replicas on cpu and on GPUs"},
      {{{"cuda:0"}, {"cuda:1"}}, {{"reproducible", "1"}}, Code::kUnsupported, "with reproducible = 1"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.says);
    Settings demanded = c.settings;
    demanded["algorithm"] = "nccl";
    for (const Status& error : start_errors(c.devices, demanded)) {
      EXPECT_EQ(error.code(), c.code) << error.message();
      EXPECT_THAT(error.message(), HasSubstr(c.says));
      EXPECT_EQ(error.parameter(), "algorithm");
    }
    EXPECT_EQ(train({c.devices, {"allreduce"}, 2, c.settings}),
              train({on_host(c.devices), {"allreduce"}, 2, c.settings}));
  }
}

TEST_F(Nccl, ACommunicatorThatCannotBeMadeFailsTheStartOfAllAndSaysWhy) {
  for (const char* function : {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError"}) {
    SCOPED_TRACE(function);
    fake_nccl::fail(function);
    for (const Status& error : start_errors({{"cuda:0"}, {"cuda:1"}}, {{"step_timeout", "5s"}})) {
      EXPECT_EQ(error.code(), Code::kInternal) << error.message();
      EXPECT_THAT(error.message(), AllOf(HasSubstr("rank "), HasSubstr("a fault that the test asked for")));
    }
  }
}

// Whatever comes now comes in a job that has trained.
void all_have_stepped(Trainer& trainer, std::barrier<>& together) {
  ok(trainer.session->start());
  ok(trainer.session->step(1, nullptr));
  together.arrive_and_wait();
}

TEST_F(Nccl, ACollectiveThatFailsEndsTheStepOfAllAndNamesTheDevice) {
  for (const char* function : {"ncclReduceScatter", "ncclGroupEnd", "ncclAllGather"}) {
    SCOPED_TRACE(function);
    std::vector<Status> how(2);
    std::barrier together(2);
    run_ranks(2, {{"strategy", "ps"}, {"lease", "500ms"}}, [&](int rank, const Settings& settings) {
      Trainer trainer(open(settings), {rank == 0 ? "cuda:0" : "cuda:1"});
      all_have_stepped(trainer, together);
      if (rank == 0) fake_nccl::fail(function);
      together.arrive_and_wait();
      how[static_cast<size_t>(rank)] = trainer.session->step(1, nullptr);
      together.arrive_and_wait();
      (void)trainer.session->close(10s);
    });
    for (const Status& status : how) {
      EXPECT_EQ(status.code(), Code::kInternal) << status.message();
      EXPECT_THAT(status.message(), AllOf(HasSubstr("cuda:"), HasSubstr("a fault that the test asked for")));
    }
  }
}

// A worker that does not mark a gradient holds up all others; their errors name it.
TEST_F(Nccl, TimeoutNamesTheLateWorker) {
  for (const char* strategy : {"allreduce", "simple"}) {
    Status how;
    std::chrono::steady_clock::duration took{};
    std::barrier together(3);
    run_ranks(3, {{"strategy", strategy}, {"step_timeout", "700ms"}},
              [&](int rank, const Settings& settings) {
                Trainer trainer(open(settings), {std::string("cuda:") + std::to_string(rank)});
                all_have_stepped(trainer, together);
                if (rank == 1) {
                  ASSERT_TRUE(trainer.session->step_begin(1).ok());  // and marks nothing
                  together.arrive_and_wait();
                  trainer.session->abort("it has seen enough");
                } else {
                  const auto begun = std::chrono::steady_clock::now();
                  const Status status = trainer.session->step(1, nullptr);
                  if (rank == 0) how = status, took = std::chrono::steady_clock::now() - begun;
                  together.arrive_and_wait();
                }
                (void)trainer.session->close(10s);
              });
    EXPECT_EQ(how.code(), Code::kTimeout) << how.message();
    EXPECT_EQ(how.rank(), 1) << how.message();
    EXPECT_LT(took, 30s);
  }
}

// The devices wait for a stream of the host's, so nothing can be aborted.
TEST_F(Nccl, AStepEndsInTimeThoughTheHostsStreamDoesNot) {
  std::promise<void> go;
  Trainer trainer(open({{"step_timeout", "300ms"}}), {"cuda:0", "cuda:1"});
  ok(trainer.session->start());
  fake_cuda::enqueue(nullptr, [&go] { go.get_future().wait(); });
  const Status late = trainer.session->step(1, nullptr);  // would else end when the stream does: never
  EXPECT_EQ(late.code(), Code::kTimeout) << late.message();
  EXPECT_THAT(late.message(), HasSubstr("the all-reduce over 2 devices has not ended in time"));
  go.set_value();
  (void)trainer.session->close(10s);
}

// A worker goes while the others' GPUs wait for its own: they are let go of, and it is named.
TEST_F(Nccl, WhoGoesInMidCollectiveIsNamed) {
  for (const char* strategy : {"allreduce", "ps"}) {
    std::vector<Status> how(3);
    std::barrier together(3);
    run_ranks(3, {{"strategy", strategy}, {"lease", "1s"}}, [&](int rank, const Settings& settings) {
      Trainer trainer(open(settings), {std::string("cuda:") + std::to_string(rank)});
      all_have_stepped(trainer, together);
      if (rank == 2) {
        ASSERT_TRUE(trainer.session->step_begin(1).ok());
        std::this_thread::sleep_for(50ms);  // the others are in it, or will be
        trainer.session->abort("gone");
      } else {
        how[static_cast<size_t>(rank)] = trainer.session->step(1, nullptr);
      }
      (void)trainer.session->close(10s);
    });
    for (int rank : {0, 1}) {
      const Status& status = how[static_cast<size_t>(rank)];
      EXPECT_FALSE(status.ok());
      EXPECT_EQ(status.rank(), 2) << status.message();
    }
  }
}

TEST_F(Nccl, AStrategyMayDemandItWhenTrainingBeginsAndLaterIfThereAreTeams) {
  const Devices gpus = {{"cuda:0"}, {"cuda:1"}};
  for (const char* configured : {"auto", "ring"}) {
    run_ranks(2, {{"algorithm", configured}}, [&](int rank, const Settings& settings) {
      Trainer trainer(open(settings), gpus[static_cast<size_t>(rank)]);
      ok(trainer.session->start());
      ok(trainer.session->step(1, nullptr));
      const Status changed = trainer.session->set_strategy("allreduce", "algorithm=nccl");
      if (settings.at("algorithm") == "auto") {
        ok(changed);
      } else {
        EXPECT_EQ(changed.code(), Code::kUnsupported) << changed.message();
        EXPECT_THAT(changed.message(), HasSubstr("start with algorithm=nccl"));
      }
      ok(trainer.session->step(1, nullptr));
      ok(trainer.session->close(10s));
    });
    const int before = fake_nccl::ended();
    run_ranks(2, {{"algorithm", configured}}, [&](int rank, const Settings& settings) {
      Trainer trainer(open(settings), gpus[static_cast<size_t>(rank)]);
      ok(trainer.session->set_strategy("allreduce", "algorithm=nccl"));
      ok(trainer.session->start());
      ok(trainer.session->step(1, nullptr));
      ok(trainer.session->close(10s));
    });
    EXPECT_GT(fake_nccl::ended(), before);
  }
}

// Headers that do not agree are found before anything is given to NCCL, so the next step may come.
TEST_F(Nccl, AStepThatIsRefusedInAgreementLeavesTheTeamWhole) {
  run_ranks(2, {}, [](int rank, const Settings& settings) {
    Trainer trainer(open(settings), {rank == 0 ? "cuda:0" : "cuda:1"});
    ok(trainer.session->start());
    ok(trainer.session->step(1, nullptr));
    ok(trainer.session->set_learning_rate(rank == 0 ? 0.5 : 0.25));
    EXPECT_EQ(trainer.session->step(1, nullptr).code(), Code::kMismatch);
    ok(trainer.session->set_learning_rate(0.5));
    ok(trainer.session->step(1, nullptr));
    ok(trainer.session->close(10s));
  });
}

// Last: from here on every communicator has lost a peer.
TEST_F(Nccl, ZzzAPeerThatOnlyNcclMissesIsAnErrorWithinTheLease) {
  std::vector<Status> how(2);
  std::barrier together(2);
  run_ranks(2, {{"lease", "500ms"}}, [&](int rank, const Settings& settings) {
    Trainer trainer(open(settings), {rank == 0 ? "cuda:0" : "cuda:1"});
    ok(trainer.session->start());
    together.arrive_and_wait();
    if (rank == 0) fake_nccl::lose_peer();
    together.arrive_and_wait();
    how[static_cast<size_t>(rank)] = trainer.session->step(1, nullptr);
    together.arrive_and_wait();
    (void)trainer.session->close(10s);
  });
  for (const Status& status : how) {
    EXPECT_EQ(status.code(), Code::kWorkerLost) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("remote process exited"));
  }
}

}  // namespace
}  // namespace dsgd

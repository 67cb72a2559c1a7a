// Sessions whose GPUs add up among themselves: on the fake runtime and the fake NCCL, whose members are all
// in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <future>
#include <optional>

#include "tests/unit/device/fake_nccl.h"
#include "tests/unit/device/leak_test.h"
#include "tests/unit/device/trainer.h"
#include "tests/unit/sanitizer.h"
#include "tests/unit/wait_for.h"

namespace dsgd {
namespace {

using namespace std::chrono_literals;
using dsgd_test::kSanitized;
using dsgd_test::Thinned;
using testing::AllOf;
using testing::HasSubstr;

class Nccl : public fake_cuda::LeakTest {
 protected:
  Nccl() { fake_cuda::set_devices(8); }
  ~Nccl() override {
    EXPECT_EQ(fake_nccl::alive(), 0);
    EXPECT_EQ(fake_nccl::registrations(), 0);
  }
};

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

// A job keeps one strategy, or changes it.
const std::vector<std::vector<std::string>> kStrategies = {
    {"allreduce"}, {"ps"}, {"simple", "ps", "allreduce"}};

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

// Must be the first test of a process, since dsgd keeps the first NCCL that it can use. It fails if
// --gtest_shuffle runs another test before it.
TEST_F(Nccl, TooOldNcclFailsOnlyWhenRequired) {
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
  Thinned cases;
  for (const Place& place : places()) {
    for (const std::vector<std::string>& strategies : std::vector<std::vector<std::string>>{
             {"allreduce"}, {"ps"}, {"simple"}, {"ps", "allreduce", "simple", "allreduce", "ps"}}) {
      for (const char* internode : {"rpc", "nccl"}) {
        if (cases.skip_next()) continue;
        SCOPED_TRACE(std::string(place.name) + ", " + strategies[0] + ", internode=" + internode);
        const std::string absent = internode == std::string("nccl") ? "zero" : "skip";
        TrainingJob job{place.devices,
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
        const int before = fake_nccl::ended(), registered = fake_nccl::ended_registered();
        std::vector<uint64_t> digests;
        std::vector<double> norms, expected_norms;
        const auto values = train(job, &digests, &norms);
        EXPECT_GE(fake_nccl::ended() - before, 6);
        EXPECT_EQ(fake_nccl::ended_registered() - registered, fake_nccl::ended() - before);
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

// Teams add in float32. Sums of integers are exact in float16, so values are those of the host without
// halves; other sums are rounded between the teams, and all workers get the same.
TEST_F(Nccl, PartsTravelBetweenTeamsAsHalves) {
  Thinned cases;
  for (const Place& place : places()) {
    for (const std::vector<std::string>& strategies : kStrategies) {
      if (cases.skip_next()) continue;
      SCOPED_TRACE(std::string(place.name) + ", " + strategies[0]);
      TrainingJob job{place.devices,
                      strategies,
                      6,
                      {{"bucket_size", "4K"}, {"algorithm", "nccl"}, {"wire", "fp16"}, {"loss_scale", "16"}},
                      place.nodes};
      std::vector<double> norms, expected_norms;
      const auto values = train(job, nullptr, &norms);
      TrainingJob host = job;
      host.devices = on_host(job.devices);
      host.settings = {{"bucket_size", "4K"}, {"gradient_norm", "1"}};
      EXPECT_EQ(values, train(host, nullptr, &expected_norms));
      for (size_t step = 0; step < norms.size(); ++step)
        EXPECT_NEAR(norms[step], expected_norms[step], 1e-6 * expected_norms[step]);

      job.settings["wire"] = "bf16";
      job.wide = host.wide = true;
      std::vector<uint64_t> digests;
      const auto rounded = train(job, &digests)[0];
      for (uint64_t digest : digests) EXPECT_EQ(digest, digests[0]);
      const auto exact = train(host)[0];
      ASSERT_EQ(rounded.size(), exact.size());
      float most = 0, largest = 0;
      for (size_t i = 0; i < exact.size(); ++i) {
        most = std::max(most, std::abs(rounded[i] - exact[i]));
        largest = std::max(largest, std::abs(exact[i]));
      }
      EXPECT_LT(most, largest / 64);
      if (place.nodes.size() > 1 || place.name == std::string("a worker on the host")) {
        EXPECT_GT(most, largest / 1e5f) << "nothing was rounded";
      } else if (strategies[0] == "allreduce") {
        EXPECT_LT(most, largest / 1e5f) << "NCCL's sums were rounded";
      }
    }
  }
}

// Each step is clipped, by a norm that devices compute from the parts of the sums that they have.
TEST_F(Nccl, ClipsAsTheHostDoesWhereverGpusAre) {
  Thinned cases;
  for (const Place& place : places()) {
    for (const std::vector<std::string>& strategies : kStrategies) {
      for (const char* internode : {"rpc", "nccl"}) {
        if (cases.skip_next()) continue;
        SCOPED_TRACE(std::string(place.name) + ", " + strategies[0] + ", internode=" + internode);
        TrainingJob job{place.devices,
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
      TrainingJob job{
          place.devices, {strategy}, kSteps, {{"bucket_size", "4K"}, {"algorithm", "nccl"}}, place.nodes};
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
  Thinned cases;
  for (const Place& place : places()) {
    for (const std::vector<std::string>& strategies : kStrategies) {
      if (cases.skip_next()) continue;
      SCOPED_TRACE(std::string(place.name) + ", " + strategies[0]);
      TrainingJob job{place.devices,
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

TEST_F(Nccl, GradientsThatAreNotFiniteFailAreSkippedOrCountAsZero) {
  Thinned cases;
  for (const Place& place : places()) {
    for (const char* strategy : {"allreduce", "ps"}) {
      for (const char* nonfinite : {"fail", "skip", "zero"}) {
        if (cases.skip_next()) continue;
        SCOPED_TRACE(std::string(place.name) + ", " + strategy + ", nonfinite=" + nonfinite);
        TrainingJob job{place.devices,
                        {strategy},
                        5,
                        {{"bucket_size", "4K"}, {"algorithm", "nccl"}, {"nonfinite", nonfinite}},
                        place.nodes};
        job.overflows = [](int step) { return step > 0 && step < 4; };
        const auto values = train(job);
        job.devices = on_host(job.devices);
        job.settings = {{"bucket_size", "4K"}};
        job.zeros = std::string(nonfinite) == "zero";
        EXPECT_EQ(values, train(job));
      }
    }
  }
}

// Collectives of the second step of one worker with two GPUs, whose parameters have somewhat more than 33
// MiB.
int collectives_of_a_step(const Settings& settings) {
  Trainer trainer(open(settings), {"cuda:0", "cuda:1"});
  const int64_t count = 33 << 18;
  Parameter* large = trainer.session->add_parameter("large", DType::kFloat32, {&count, 1}, true).value();
  std::vector<std::shared_ptr<TensorMemory>> memory;
  for (Replica* replica : trainer.replicas) memory.push_back(trainer.session->alloc(replica, large).value());
  ok(trainer.session->start());
  ok(trainer.session->step(1, nullptr));
  const int before = fake_nccl::ended();
  ok(trainer.session->step(1, nullptr));
  const int collectives = fake_nccl::ended() - before;
  ok(trainer.session->close(10s));
  return collectives;
}

TEST_F(Nccl, BucketsAreLargeUnlessTheUserGivesTheirSize) {
  EXPECT_EQ(collectives_of_a_step({}), 2);
  EXPECT_EQ(collectives_of_a_step({{"bucket_size", "4M"}}), 9);
}

// Two nodes of two GPUs each, and 4 MiB of gradients. A worker's part of a bucket is half of it. With "ps" it
// also owns about a quarter, of which it fetches the values, too.
TEST_F(Nccl, AWorkerPinsOnlyThePartsOfABucketThatItUses) {
  constexpr size_t kModel = 4 << 20, kOther = 256 << 10;  // by worker: the comparison of values, pages
  const int64_t count = kModel / sizeof(float);
  for (const auto& [strategy, expected] :
       std::vector<std::pair<const char*, size_t>>{{"allreduce", 4 * kModel / 2}, {"ps", 4 * kModel}}) {
    SCOPED_TRACE(strategy);
    std::barrier together(4);
    run_ranks(4, {{"strategy", strategy}, {"algorithm", "nccl"}}, [&](int rank, const Settings& settings) {
      Trainer trainer(open(settings, rank < 2 ? "a" : "b"), {"cuda:" + std::to_string(rank)});
      Parameter* large = trainer.session->add_parameter("large", DType::kFloat32, {&count, 1}, true).value();
      const auto memory = trainer.session->alloc(trainer.replicas[0], large).value();
      ok(trainer.session->start());
      ok(trainer.session->step(1, nullptr));
      together.arrive_and_wait();
      if (rank == 0) {
        EXPECT_GT(fake_cuda::pinned(), 4 * kModel / 2);
        EXPECT_LT(fake_cuda::pinned(), expected + 4 * kOther);
      }
      together.arrive_and_wait();
      ok(trainer.session->close(10s));
    });
  }
}

TEST_F(Nccl, SumsAndCollectivesHaveTheGreatestPriority) {
  (void)fake_cuda::take_priorities();
  train({{{"cuda:0", "cuda:1"}, {"cuda:2"}}, {"allreduce", "ps"}, 4, {{"algorithm", "nccl"}}});
  EXPECT_EQ(fake_cuda::take_priorities(), std::set<int>{fake_cuda::kGreatestPriority});
}

TEST_F(Nccl, OnlyTheDevicesOfReplicasAreTouched) {
  (void)fake_cuda::take_devices_used();
  train({{{"cuda:2", "cuda:3"}, {"cuda:5"}}, {"allreduce", "ps"}, 4, {{"algorithm", "nccl"}}});
  EXPECT_EQ(fake_cuda::take_devices_used(), (std::set<int>{2, 3, 5}));
}

// NCCL would refuse the second rank, as the double does.
TEST_F(Nccl, TwoSlicesOfOneGpuAreNotPutIntoOneCommunicator) {
  const struct Slices {
    Slices() { fake_cuda::share_bus(true); }
    ~Slices() { fake_cuda::share_bus(false); }
  } slices;
  const Devices devices = {{"cuda:0"}, {"cuda:1"}};
  for (const Status& error : start_errors(devices, {{"algorithm", "nccl"}})) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THAT(error.message(), HasSubstr("rank 0 and rank 1 use one GPU, which NCCL does not allow"));
  }
  for (const char* strategy : {"allreduce", "ps"}) {
    const int before = fake_nccl::ended();
    EXPECT_EQ(train({devices, {strategy}, 3, {}}), train({on_host(devices), {strategy}, 3, {}}));
    EXPECT_EQ(fake_nccl::ended(), before);
  }
  // A slice of a machine of its own shares nothing: teams of one, whose parts travel.
  const std::vector<std::string> nodes = {"a", "b"};
  EXPECT_EQ(train({devices, {"allreduce"}, 3, {}, nodes}),
            train({on_host(devices), {"allreduce"}, 3, {}, nodes}));
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

TEST_F(Nccl, UnusableNcclFailsOnlyWhenRequired) {
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

// Starts and makes one step, so that the fault hits a running job.
void all_have_stepped(Trainer& trainer, std::barrier<>& together) {
  ok(trainer.session->start());
  ok(trainer.session->step(1, nullptr));
  together.arrive_and_wait();
}

TEST_F(Nccl, ACollectiveThatFailsEndsTheStepOfAllAndNamesTheDevice) {
  for (const char* function : {"ncclReduceScatter", "ncclGroupEnd", "ncclAllGather", "ncclCommRegister"}) {
    SCOPED_TRACE(function);
    std::vector<Status> how(2);
    std::barrier together(2);
    run_ranks(2, {{"strategy", "ps"}, {"lease", "500ms"}}, [&](int rank, const Settings& settings) {
      Trainer trainer(open(settings), {rank == 0 ? "cuda:0" : "cuda:1"});
      all_have_stepped(trainer, together);
      ok(trainer.session->set_parameter(trainer.tensors[0].parameter, "frozen=1"));  // makes new buffers
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

// The other worker may have started before it hears of that.
TEST_F(Nccl, WantOfMemoryForSumsFailsTheStartAndSaysWhy) {
  fake_nccl::fail("ncclMemAlloc");
  bool any = false;
  for (const Status& error : start_errors({{"cuda:0"}, {"cuda:1"}}, {{"step_timeout", "5s"}})) {
    any = any || error.code() == Code::kNoMemory;
    EXPECT_THAT(error.message(), HasSubstr(error.ok() ? "" : "ncclMemAlloc of "));
  }
  EXPECT_TRUE(any);
}

// Each change of a plan makes new buffers; the old ones' registrations end with them.
TEST_F(Nccl, SumsAreRegisteredOnceForEachPlan) {
  const int before = fake_nccl::ended(), registered = fake_nccl::ended_registered();
  Trainer trainer(open(), {"cuda:0", "cuda:1"});
  ok(trainer.session->start());
  for (const char* settings : {"frozen=1", "frozen=0", "frozen=1"}) {
    ok(trainer.session->step(1, nullptr));
    EXPECT_EQ(fake_nccl::registrations(), 2);  // one for each GPU
    ok(trainer.session->set_parameter(trainer.tensors[0].parameter, settings));
    EXPECT_EQ(fake_nccl::registrations(), 0);
  }
  ok(trainer.session->step(1, nullptr));
  ok(trainer.session->close(10s));
  EXPECT_GT(fake_nccl::ended(), before);
  EXPECT_EQ(fake_nccl::ended_registered() - registered, fake_nccl::ended() - before);
}

// The step ends when its updates are enqueued.
TEST_F(Nccl, SumsStayUntilTheUpdatesThatReadThemAreDone) {
  Trainer trainer(open(), {"cuda:0", "cuda:1"}, "sgd", "lr=1");
  for (size_t r : {0, 1}) trainer.fill(r, true, [](size_t) { return 1.0f; });
  ok(trainer.session->start());
  for (int device : {0, 1}) fake_cuda::set_delay(device, 20ms);
  auto operation = trainer.session->step_begin(1);
  ASSERT_TRUE(operation.ok());
  for (Replica* replica : trainer.replicas) {
    for (Tensor& tensor : trainer.tensors)
      ok(trainer.session->gradient_ready(replica, tensor.parameter, nullptr));
  }
  ok(trainer.session->wait(*operation.value(), -1ms));
  ok(trainer.session->set_parameter(trainer.tensors[0].parameter, "frozen=1"));
  for (int device : {0, 1}) fake_cuda::set_delay(device, 0us);
  EXPECT_EQ(trainer.values(), std::vector<float>(trainer.values().size(), -1));
  ok(trainer.session->close(10s));
}

// Two workers of a team that begin a step while their GPUs wait for a stream of the host's. `ended`: what the
// step comes to meanwhile; then `after` is called, with the streams still held.
void step_behind_held_streams(const Settings& given, bool succeeds,
                              const std::function<void(bool ended)>& check,
                              const std::function<void(Trainer&, int rank)>& after) {
  std::promise<void> go[2];
  std::barrier together(2);
  run_ranks(2, given, [&](int rank, const Settings& settings) {
    cudaStream_t stream;
    ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    {
      Trainer trainer(open(settings), {"cuda:" + std::to_string(rank)}, "sgd", "lr=1");
      trainer.fill(0, true, [rank](size_t) { return static_cast<float>(1 + 2 * rank); });
      all_have_stepped(trainer, together);
      fake_cuda::enqueue(stream, [&go, rank] { go[rank].get_future().wait(); });
      auto operation = trainer.session->step_begin(1);
      ASSERT_TRUE(operation.ok());
      for (Tensor& tensor : trainer.tensors)
        ok(trainer.session->gradient_ready(trainer.replicas[0], tensor.parameter, stream));
      check(trainer.session->wait(*operation.value(), 500ms).ok());
      together.arrive_and_wait();
      after(trainer, rank);
      together.arrive_and_wait();
      go[rank].set_value();
      (void)trainer.session->wait(*operation.value(), -1ms);
      if (succeeds) {
        ok(trainer.session->step(0, nullptr));  // ends when the values are there
        EXPECT_EQ(trainer.values(), std::vector<float>(trainer.values().size(), -4));
      }
      together.arrive_and_wait();
      (void)trainer.session->close(10s);
    }
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
}

TEST_F(Nccl, AnEarlyUpdateDoesNotWaitForTheSums) {
  for (const char* early : {"0", "1"}) {
    SCOPED_TRACE(early);
    step_behind_held_streams(
        {{"early_update", early}}, true, [&](bool ended) { EXPECT_EQ(ended, *early == '1'); },
        [](Trainer&, int) {});
  }
}

TEST_F(Nccl, ATeamThatFailsBehindAnEarlyUpdateFailsTheSession) {
  step_behind_held_streams(
      {{"early_update", "1"}, {"lease", "500ms"}}, false, [](bool ended) { EXPECT_TRUE(ended); },
      [](Trainer& trainer, int rank) {
        if (rank == 1) {
          trainer.session->abort("it has seen enough");
          return;
        }
        const Status next = trainer.session->step(1, nullptr);
        EXPECT_FALSE(next.ok());
        EXPECT_THAT(next.message(), HasSubstr("it has seen enough"));
      });
}

TEST_F(Nccl, SumsThatDoNotEndInTimeBehindAnEarlyUpdateFailTheSession) {
  step_behind_held_streams(
      {{"early_update", "1"}, {"step_timeout", "2s"}}, false, [](bool ended) { EXPECT_TRUE(ended); },
      [](Trainer& trainer, int) {
        const auto until = std::chrono::steady_clock::now() + 30s;
        Status status;
        while (status.ok() && std::chrono::steady_clock::now() < until) {
          status = wait_for(*trainer.session, trainer.session->barrier(Session::Mode::kWait));
        }
        EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
        EXPECT_THAT(status.message(), HasSubstr("the all-reduce over 2 devices has not ended in time"));
      });
}

// Values have the same bits. What does not go to the host and back: one trailer of a bucket in each
// direction, for each worker and step.
TEST_F(Nccl, EarlyUpdatesComeToTheSameWithFewerCopies) {
  using fake_cuda::HoldCopies;
  for (const Place& place : places()) {
    if (place.devices.size() < 2 || on_host(place.devices) == place.devices) continue;
    if (place.name == std::string("a worker on the host")) continue;  // not all are in one team
    TrainingJob job{
        place.devices, {"allreduce"}, 4, {{"internode", "nccl"}, {"algorithm", "nccl"}}, place.nodes};
    std::vector<std::vector<float>> values[2];
    size_t copies[2][2];
    for (const int early : {0, 1}) {
      SCOPED_TRACE(std::string(place.name) + ", early_update=" + std::to_string(early));
      job.settings["early_update"] = std::to_string(early);
      size_t before[2];
      for (int d : {0, 1}) before[d] = fake_cuda::copies(static_cast<HoldCopies::Direction>(d)).count;
      values[early] = train(job);
      for (int d : {0, 1})
        copies[early][d] = fake_cuda::copies(static_cast<HoldCopies::Direction>(d)).count - before[d];
    }
    EXPECT_EQ(values[1], values[0]);
    for (int d : {0, 1}) EXPECT_EQ(copies[0][d] - copies[1][d], 4 * place.devices.size()) << place.name;
  }
}

TEST_F(Nccl, NoGradientIsAbsentWithEarlyUpdates) {
  Trainer trainer(open({{"early_update", "1"}}), {"cuda:0", "cuda:1"});
  ok(trainer.session->start());
  const Status refused = trainer.session->gradient_absent(trainer.replicas[0], trainer.tensors[0].parameter);
  EXPECT_EQ(refused.code(), Code::kState);
  EXPECT_THAT(refused.message(), HasSubstr("'p0': no gradient may be absent with early_update = 1"));
  ok(trainer.session->close(10s));
}

TEST_F(Nccl, AllWorkersUpdateEarlyOrNone) {
  run_ranks(2, {}, [](int rank, Settings settings) {
    settings["early_update"] = std::to_string(rank);
    Trainer trainer(open(settings), {"cuda:" + std::to_string(rank)});
    const Status started = trainer.session->start();
    EXPECT_EQ(started.code(), Code::kMismatch);
    EXPECT_THAT(started.message(), HasSubstr("early_update = "));
    (void)trainer.session->close(10s);
  });
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
TEST_F(Nccl, WorkerLostInACollectiveIsNamed) {
  for (const char* strategy : {"allreduce", "ps"}) {
    std::vector<Status> how(3);
    std::barrier together(3);
    run_ranks(3, {{"strategy", strategy}, {"lease", "1s"}}, [&](int rank, const Settings& settings) {
      Trainer trainer(open(settings), {std::string("cuda:") + std::to_string(rank)});
      all_have_stepped(trainer, together);
      if (rank == 2) {
        ASSERT_TRUE(trainer.session->step_begin(1).ok());
        while (fake_nccl::waiting() < 2) std::this_thread::yield();
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

// Only NCCL misses the peer. The lease of 500 ms bounds the time that the error takes.
TEST_F(Nccl, LostNcclPeerIsWorkerLost) {
  std::optional<fake_nccl::LostPeer> lost;
  std::vector<Status> how(2);
  std::barrier together(2);
  run_ranks(2, {{"lease", "500ms"}}, [&](int rank, const Settings& settings) {
    Trainer trainer(open(settings), {rank == 0 ? "cuda:0" : "cuda:1"});
    ok(trainer.session->start());
    together.arrive_and_wait();
    if (rank == 0) lost.emplace();
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

// The promises of device.h about communicators, on all GPUs of this machine: of the fake runtime with the
// fake NCCL, or real ones with the real NCCL (DSGD_NCCL_LIBRARY). All GPUs are one member's, or each is a
// member's of its own, as they are in several processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>
#include <optional>

#include "core/device/device.h"
#include "tests/unit/device/gpu.h"

namespace dsgd::device {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// How something has ended, once it has.
class Ending {
 public:
  Communicator::Ended told() {
    return [promise = promise_](const Status& status) { promise->set_value(status); };
  }
  Status status() {
    if (future_.wait_for(1min) != std::future_status::ready)
      return Status(Code::kInternal, "it has not ended within a minute");
    return future_.get();
  }
  bool has_come() const { return future_.wait_for(0s) == std::future_status::ready; }

 private:
  const std::shared_ptr<std::promise<Status>> promise_ = std::make_shared<std::promise<Status>>();
  std::future<Status> future_ = promise_->get_future();
};

class CommunicatorConformance : public testing::TestWithParam<const char*> {
 protected:
  struct Gpu {
    std::shared_ptr<Device> device;
    std::unique_ptr<WorkQueue> queue;
    std::unique_ptr<DeviceEvent> filled, reached;
  };
  struct Member {
    std::vector<Gpu*> gpus;
    std::unique_ptr<Communicator> communicator;
  };

  CommunicatorConformance() {
    for (int i = 0; i < device::gpus(); ++i) {
      auto device = Device::open(cuda_backend(), i).value();
      auto queue = std::move(device->new_queue()).value();
      auto filled = std::move(device->new_event()).value(), reached = std::move(device->new_event()).value();
      gpus.push_back({std::move(device), std::move(queue), std::move(filled), std::move(reached)});
    }
  }
  void SetUp() override {
    ASSERT_FALSE(gpus.empty());
    const char* path = std::getenv("DSGD_NCCL_LIBRARY");
    auto library = gpus[0].device->load_communicators(path ? path : "");
    ASSERT_TRUE(library.ok()) << library.status().message();
    std::printf("%s\n", library.value().description.c_str());
  }
  // Joins all members to a communicator of gpus.size() + `absent` ranks; returns their statuses.
  std::vector<Status> join(size_t absent = 0, std::chrono::nanoseconds timeout = 1min) {
    const bool apart = std::strcmp(GetParam(), "each_its_own") == 0;
    const CommunicatorId id = gpus[0].device->new_communicator_id().value();
    std::vector<Ending> joined(apart ? gpus.size() : 1);
    for (size_t first = 0, m = 0; m < joined.size(); ++m) {
      Member member;
      std::vector<std::shared_ptr<Device>> devices;
      for (size_t g = first; g < (apart ? first + 1 : gpus.size()); ++g) {
        member.gpus.push_back(&gpus[g]);
        devices.push_back(gpus[g].device);
      }
      member.communicator =
          Device::join(devices, id, static_cast<int32_t>(first), static_cast<int32_t>(gpus.size() + absent),
                       timeout, joined[m].told())
              .value();
      first += devices.size();
      members.push_back(std::move(member));
    }
    std::vector<Status> how;
    for (Ending& ending : joined) how.push_back(ending.status());
    return how;
  }
  void all_join() {
    for (const Status& status : join()) ok(status);
  }

  // A buffer on each GPU, and what the host has put there, or reads. Copies are enqueued and not waited for.
  template <typename T>
  struct Buffers {
    std::vector<std::shared_ptr<void>> there, here;
    T* host(size_t gpu) const { return static_cast<T*>(here[gpu].get()); }
  };
  template <typename T>
  Buffers<T> buffers(size_t count) {
    Buffers<T> made;
    for (Gpu& gpu : gpus) {
      made.there.push_back(gpu.device->allocate(count * sizeof(T)).value());
      made.here.push_back(gpu.device->allocate_staging(count * sizeof(T)).value());
    }
    return made;
  }
  template <typename T>
  static T element(size_t gpu, size_t i) {
    return static_cast<T>((gpu * 31 + i * 7) % 101);  // sums of these are exact in any order
  }
  template <typename T>
  void fill(const Buffers<T>& to, size_t count) {
    for (size_t g = 0; g < gpus.size(); ++g) {
      for (size_t i = 0; i < count; ++i) to.host(g)[i] = element<T>(g, i);
      ok(gpus[g].queue->copy(to.there[g].get(), to.host(g), count * sizeof(T)));
      ok(gpus[g].queue->record(*gpus[g].filled));
    }
  }
  template <typename T>
  void read(const Buffers<T>& from, size_t count) {
    for (size_t g = 0; g < gpus.size(); ++g) {
      ok(gpus[g].queue->wait(*gpus[g].reached));
      ok(gpus[g].queue->copy(from.host(g), from.there[g].get(), count * sizeof(T)));
      ok(finish(*gpus[g].device, *gpus[g].queue));
    }
  }
  size_t index_of(const Gpu* gpu) const { return static_cast<size_t>(gpu - gpus.data()); }
  // By one member, in its GPUs' buffers.
  template <typename T>
  Communicator::Work work_of(const Member& member, Collective collective, size_t count,
                             const Buffers<T>& buffers) {
    Communicator::Work work{
        collective, sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64, count, {}, {}, {}, {}, {}};
    for (Gpu* gpu : member.gpus) {
      work.buffers.push_back(buffers.there[index_of(gpu)].get());
      work.wait_for.push_back(gpu->filled.get());
      work.done_events.push_back(gpu->reached.get());
    }
    return work;
  }

  template <typename T>
  void sums();

  std::vector<Gpu> gpus;
  std::vector<Member> members;  // gone before the GPUs are
};

template <typename T>
void CommunicatorConformance::sums() {
  const size_t size = gpus.size();
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{100'003}}) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      SCOPED_TRACE(std::to_string(count) + " elements, collective " +
                   std::to_string(static_cast<int>(collective)));
      const size_t all = collective == Collective::kAllReduce ? count : size * count;
      const Buffers<T> buffers = this->buffers<T>(all);
      fill(buffers, all);
      std::vector<Ending> endings(members.size());
      for (size_t m = 0; m < members.size(); ++m) {
        members[m].communicator->enqueue(work_of(members[m], collective, count, buffers), 1min,
                                         endings[m].told());
      }
      for (Ending& ending : endings) ok(ending.status());
      read(buffers, all);
      for (size_t g = 0; g < size; ++g) {
        const bool part = collective == Collective::kReduceScatter;
        size_t wrong = 0;
        for (size_t i = part ? g * count : 0; i < (part ? (g + 1) * count : all); ++i) {
          T expected = 0;
          if (collective == Collective::kAllGather) {
            expected = element<T>(i / count, i);
          } else {
            for (size_t from = 0; from < size; ++from) expected += element<T>(from, i);
          }
          wrong += buffers.host(g)[i] != expected;
        }
        EXPECT_EQ(wrong, 0u) << "on GPU " << g;
      }
    }
  }
}

// With it NCCL's calls would block, and no deadline would hold.
TEST(CommunicatorLibrary, NcclThatBlocksIsRefused) {
  auto device = Device::open(cuda_backend(), 0).value();
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  const Status refused = device->load_communicators("").status();
  unsetenv("NCCL_COMM_BLOCKING");
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_THAT(refused.message(), HasSubstr("NCCL_COMM_BLOCKING = 1"));
}

TEST_P(CommunicatorConformance, AllGetTheSumsOfAPlainLoop) {
  all_join();
  sums<float>();
  sums<double>();
}

// One piece is freed before the next work, one when the communicator has gone.
TEST_P(CommunicatorConformance, SumsInCommunicatorMemoryAreRight) {
  constexpr size_t kCount = 10'000;
  all_join();
  std::vector<std::shared_ptr<void>> kept;
  for (int round = 0; round < 3; ++round) {
    Buffers<float> buffers = this->buffers<float>(kCount);
    for (Member& member : members) {
      auto made = member.communicator->allocate(kCount * sizeof(float)).value();
      ASSERT_EQ(made.size(), member.gpus.size());
      for (size_t d = 0; d < made.size(); ++d) buffers.there[index_of(member.gpus[d])] = made[d];
    }
    read(buffers, kCount);
    EXPECT_EQ(std::count(buffers.host(0), buffers.host(0) + kCount, 0.0f), static_cast<ptrdiff_t>(kCount));
    fill(buffers, kCount);
    std::vector<Ending> endings(members.size());
    for (size_t m = 0; m < members.size(); ++m) {
      members[m].communicator->enqueue(work_of(members[m], Collective::kAllReduce, kCount, buffers), 1min,
                                       endings[m].told());
    }
    for (Ending& ending : endings) ok(ending.status());
    read(buffers, kCount);
    size_t wrong = 0;
    for (size_t i = 0; i < kCount; ++i) {
      float expected = 0;
      for (size_t from = 0; from < gpus.size(); ++from) expected += element<float>(from, i);
      for (size_t g = 0; g < gpus.size(); ++g) wrong += buffers.host(g)[i] != expected;
    }
    EXPECT_EQ(wrong, 0u);
    if (round == 1) kept = buffers.there;
  }
  members.clear();
}

// Enqueued work waits for events of other queues, and for work enqueued before it; copies come where they
// were asked for.
TEST_P(CommunicatorConformance, WorkHappensInOrderBetweenItsEvents) {
  constexpr size_t kCount = 50'000, kTimes = 3;
  all_join();
  const Buffers<double> first = buffers<double>(kCount), sums = buffers<double>(kCount),
                        between = buffers<double>(kCount);
  fill(first, kCount);
  std::vector<std::vector<Ending>> endings(members.size());
  for (size_t m = 0; m < members.size(); ++m) {
    endings[m] = std::vector<Ending>(kTimes);
    for (size_t time = 0; time < kTimes; ++time) {
      Communicator::Work work = work_of(members[m], Collective::kAllReduce, kCount, sums);
      if (time > 0) work.wait_for.clear();
      for (uint32_t d = 0; d < members[m].gpus.size(); ++d) {
        const size_t g = index_of(members[m].gpus[d]);
        if (time == 0)
          work.copies_before.push_back(
              {d, sums.there[g].get(), first.there[g].get(), kCount * sizeof(double)});
        if (time == 0)
          work.copies_after.push_back({d, between.host(g), sums.there[g].get(), kCount * sizeof(double)});
      }
      members[m].communicator->enqueue(work, 1min, endings[m][time].told());
    }
  }
  for (std::vector<Ending>& of_member : endings) {
    for (Ending& ending : of_member) ok(ending.status());
  }
  read(sums, kCount);
  for (size_t g = 0; g < gpus.size(); ++g) {
    size_t wrong = 0;
    for (size_t i = 0; i < kCount; ++i) {
      double expected = 0;
      for (size_t from = 0; from < gpus.size(); ++from) expected += element<double>(from, i);
      wrong += between.host(g)[i] != expected;
      for (size_t time = 1; time < kTimes; ++time) expected *= static_cast<double>(gpus.size());
      wrong += sums.host(g)[i] != expected;
    }
    EXPECT_EQ(wrong, 0u) << "on GPU " << g;
  }
}

// The real library is in its first call then, and must come back from it.
TEST_P(CommunicatorConformance, JoinTimesOutWithoutAllMembers) {
  for (const Status& status : join(1, 500ms)) {
    EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("the communicator over " + std::to_string(gpus.size() + 1) +
                                            " devices was not created in time"));
  }
  const Buffers<float> buffers = this->buffers<float>(1000);
  Ending ending;
  members[0].communicator->enqueue(work_of(members[0], Collective::kAllReduce, 1000, buffers), 1min,
                                   ending.told());
  EXPECT_EQ(ending.status().code(), Code::kTimeout);
}

TEST_P(CommunicatorConformance, WorkAfterFailReportsItsCause) {
  all_join();
  const Buffers<float> buffers = this->buffers<float>(1000);
  fill(buffers, 1000);
  std::optional<Ending> in_flight;
  if (members.size() > 1) {  // it waits for the others
    members[0].communicator->enqueue(work_of(members[0], Collective::kAllReduce, 1000, buffers), 1min,
                                     in_flight.emplace().told());
    EXPECT_FALSE(in_flight->has_come());
  }
  Ending later;
  members[0].communicator->fail(Status(Code::kAborted, "the test has seen enough"));
  members[0].communicator->enqueue(work_of(members[0], Collective::kAllReduce, 1000, buffers), 1min,
                                   later.told());
  for (Ending* ending : {in_flight ? &*in_flight : nullptr, &later}) {
    if (!ending) continue;
    const Status status = ending->status();
    EXPECT_EQ(status.code(), Code::kAborted);
    EXPECT_EQ(status.message(), "the test has seen enough");
  }
}

TEST_P(CommunicatorConformance, CollectiveWithoutAPeerTimesOut) {
  if (std::strcmp(GetParam(), "each_its_own") != 0 || gpus.size() < 2)
    GTEST_SKIP() << "there is nobody to wait for";
  all_join();
  const Buffers<float> buffers = this->buffers<float>(1000);
  fill(buffers, 1000);
  Ending ending;
  members[0].communicator->enqueue(work_of(members[0], Collective::kReduceScatter, 10, buffers), 300ms,
                                   ending.told());
  const Status status = ending.status();
  EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
  EXPECT_THAT(status.message(), HasSubstr("cuda:0: the reduce-scatter over "));
}

TEST_P(CommunicatorConformance, DestructionEndsWorkInFlight) {
  all_join();
  const Buffers<float> buffers = this->buffers<float>(1000);
  fill(buffers, 1000);
  Ending ending;
  members[0].communicator->enqueue(work_of(members[0], Collective::kAllReduce, 1000, buffers), 1min,
                                   ending.told());
  members[0].communicator.reset();
  ASSERT_TRUE(ending.has_come());
  const Status status = ending.status();
  EXPECT_TRUE(status.code() == Code::kClosed || (members.size() == 1 && status.ok())) << status.message();
  ok(finish(*gpus[0].device, *gpus[0].queue));
}

INSTANTIATE_TEST_SUITE_P(Members, CommunicatorConformance, testing::Values("one_for_all", "each_its_own"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace dsgd::device

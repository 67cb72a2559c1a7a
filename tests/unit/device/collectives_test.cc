// Stand-alone collectives whose buffers are on GPUs: of the fake runtime, or real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/begin.h"
#include "tests/unit/device/gpu_session.h"
#include "tests/unit/device/trainer.h"
#include "tests/unit/sanitizer.h"
#include "tests/unit/wait_for.h"

namespace dsgd {
namespace {

using namespace std::chrono_literals;
using dsgd_test::kSanitized;
using testing::AllOf;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using Mode = Session::Mode;

#ifdef DSGD_TEST_PLUGIN
class GpuCollectives : public GpuSession {};
#else
// A thread makes and frees late what dsgd could not make or free at once.
class GpuCollectives : public GpuSession {
 protected:
  ~GpuCollectives() override { EXPECT_TRUE(fake_cuda::wait_for(before_)); }

 private:
  const fake_cuda::Alive before_ = fake_cuda::alive();
};
#endif

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64,  DType::kInt32, DType::kInt64, DType::kUint8,
                             DType::kFloat16, DType::kBfloat16, DType::kInt8,  DType::kUint64};
const std::vector<Reduction> kReductions = {Reduction::kSum, Reduction::kMin, Reduction::kMax,
                                            Reduction::kProd, Reduction::kMean};

std::shared_ptr<device::Device> gpu(int index = 0) {
  return device::Device::open(device::cuda_backend(), index).value();
}

// Floating-point numbers of so unlike sizes that their sum depends on the order.
Bytes data_of(DType dtype, size_t count, int rank) {
  std::vector<float> floats(count);
  for (size_t i = 0; i < count; ++i) {
    floats[i] = std::ldexp(static_cast<float>((i * 7 + static_cast<size_t>(rank) * 3) % 11) - 5,
                           static_cast<int>((i * 5 + static_cast<size_t>(rank) * 3) % 20) - 10);
  }
  Bytes data(count * dtype_size(dtype));
  if (is_half(dtype)) {
    narrow(dtype, data.data(), floats.data(), count);
  } else if (dtype == DType::kFloat32) {
    if (count > 0) std::memcpy(data.data(), floats.data(), data.size());
  } else if (dtype == DType::kFloat64) {
    std::copy(floats.begin(), floats.end(), reinterpret_cast<double*>(data.data()));
  } else {
    for (size_t i = 0; i < data.size(); ++i)
      data[i] = std::byte((i * 37 + static_cast<size_t>(rank) * 11) % 251);
  }
  return data;
}

// A buffer of the host's, or on a GPU.
class Buffer {
 public:
  Buffer(device::Device* device, device::Access* access, const Bytes& content)
      : nbytes_(content.size()), access_(device ? access : nullptr) {
    if (device) {
      memory_ = device->allocate(std::max<size_t>(nbytes_, 1)).value();
    } else {
      memory_ = device::Device::host()->allocate(nbytes_).value();
    }
    write(content);
  }
  std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }
  size_t nbytes() const { return nbytes_; }
  void write(const Bytes& content) {
    if (access_) return access_->write(memory_.get(), content);
    if (nbytes_ > 0) std::memcpy(memory_.get(), content.data(), nbytes_);
  }
  Bytes read() const {
    if (access_) return access_->read<std::byte>(memory_.get(), nbytes_);
    return Bytes(data(), data() + nbytes_);
  }

 private:
  const size_t nbytes_;
  device::Access* const access_;
  std::shared_ptr<void> memory_;
};

// Where a worker has its two buffers.
struct Places {
  bool send, receive;  // on its GPU
};

// Carries out every collective on `count` elements with the buffers there, and returns what each gives.
class Rank {
 public:
  Rank(std::shared_ptr<Session> session, int rank, int size)
      : session_(std::move(session)),
        rank_(rank),
        size_(size),
        device_(gpu(rank % device::gpus())),
        access_(device_) {}

  std::vector<Bytes> collect(Places places, DType dtype, Reduction reduction, size_t count, bool in_place) {
    const Bytes mine = data_of(dtype, count, rank_), junk(count * dtype_size(dtype), std::byte{0x5a});
    std::vector<Bytes> results;
    const auto add = [&](const Result<std::shared_ptr<Operation>>& operation, const Bytes& result) {
      EXPECT_TRUE(operation.ok()) << operation.status().message();
      if (operation.ok()) ok(operation.value()->status());
      results.push_back(result);
    };
    {
      Buffer send = buffer(places.send, mine);
      Buffer receive = buffer(in_place ? places.send : places.receive, junk);
      Buffer& to = in_place ? send : receive;
      auto operation =
          begin(session_->allreduce(send.data(), to.data(), mine.size(), dtype, reduction), Mode::kWait);
      add(operation, to.read());
      if (!in_place) {
        EXPECT_EQ(send.read(), mine);
      }
    }
    {
      Buffer data = buffer(places.send, mine);
      auto operation = begin(session_->broadcast(data.data(), mine.size(), dtype, size_ - 1), Mode::kWait);
      add(operation, data.read());
    }
    // Parts of unlike sizes: rank r has r + 1 of the shares, rank 0 none of them if there are others.
    std::vector<size_t> parts(static_cast<size_t>(size_));
    size_t all = 0, before = 0;
    for (int r = 0; r < size_; ++r) {
      parts[static_cast<size_t>(r)] = size_ > 1 ? count * static_cast<size_t>(r) : count;
      if (r < rank_) before += parts[static_cast<size_t>(r)];
      all += parts[static_cast<size_t>(r)];
    }
    const size_t element = dtype_size(dtype), own = parts[static_cast<size_t>(rank_)];
    {
      const Bytes given = data_of(dtype, own, rank_);
      Bytes whole(all * element, std::byte{0x5a});
      if (in_place)
        std::copy(given.begin(), given.end(), whole.begin() + static_cast<std::ptrdiff_t>(before * element));
      Buffer receive = buffer(places.receive, whole);
      Buffer send = buffer(places.send, given);
      const void* from = in_place ? receive.data() + before * element : send.data();
      auto operation =
          begin(session_->allgather(from, given.size(), receive.data(), whole.size(), parts.data(), dtype),
                Mode::kWait);
      add(operation, receive.read());
    }
    {
      const Bytes given = data_of(dtype, all, rank_);
      Buffer send = buffer(places.send, given);
      Buffer receive = buffer(places.receive, Bytes(own * element, std::byte{0x5a}));
      void* to = in_place ? send.data() + before * element : receive.data();
      auto operation = begin(session_->reduce_scatter(send.data(), given.size(), to, own * element,
                                                      parts.data(), dtype, reduction),
                             Mode::kWait);
      Bytes result = in_place ? send.read() : receive.read();
      if (in_place) {
        result = Bytes(result.begin() + static_cast<std::ptrdiff_t>(before * element),
                       result.begin() + static_cast<std::ptrdiff_t>((before + own) * element));
      } else {
        EXPECT_EQ(send.read(), given);
      }
      add(operation, result);
    }
    return results;
  }

 private:
  Buffer buffer(bool on_gpu, const Bytes& content) {
    return Buffer(on_gpu ? device_.get() : nullptr, &access_, content);
  }

  const std::shared_ptr<Session> session_;
  const int rank_, size_;
  const std::shared_ptr<device::Device> device_;
  device::Access access_;
};

void expect_bits_of_the_host(int workers, const Settings& given, const std::vector<DType>& dtypes,
                             const std::vector<Reduction>& reductions, const std::vector<size_t>& counts) {
  run_ranks(static_cast<size_t>(workers), given, [&](int rank, const Settings& settings) {
    auto session = open(settings);
    {
      Rank mine(session, rank, workers);
      int round = rank;  // so that workers have their buffers at different places
      for (const DType dtype : dtypes) {
        for (const Reduction reduction : reductions) {
          if (reduction == Reduction::kMean && !is_floating(dtype)) continue;
          for (const size_t count : counts) {
            const std::vector<Bytes> expected = mine.collect({false, false}, dtype, reduction, count, false);
            for (const bool in_place : {false, true}) {
              const int at = round++ % 3;
              const Places places{at != 1, at != 2};
              SCOPED_TRACE(std::string(dtype_name(dtype)) + ", reduction " +
                           std::to_string(static_cast<int>(reduction)) + ", " + std::to_string(count) +
                           " elements" + (in_place ? ", in place" : "") + (places.send ? ", send" : "") +
                           (places.receive ? ", receive" : ""));
              const std::vector<Bytes> results = mine.collect(places, dtype, reduction, count, in_place);
              for (size_t i = 0; i < results.size(); ++i)
                EXPECT_TRUE(results[i] == expected[i]) << "collective " << i << " of rank " << rank;
            }
          }
        }
      }
    }
    ok(session->close(10s));
  });
}

TEST_F(GpuCollectives, GiveTheBitsOfTheHost) {
  for (const int workers : {1, 2, 3})
    expect_bits_of_the_host(workers, {}, {std::begin(kDTypes), std::end(kDTypes)}, kReductions, {0, 1, 33});
}

// Of several pieces, the last of which is odd. More than two are in flight only in turn. A reduction makes no
// difference to the pieces.
TEST_F(GpuCollectives, LargeBuffersGiveTheBitsOfTheHost) {
  const std::vector<Reduction> reductions = kSanitized ? std::vector{Reduction::kSum} : kReductions;
  const size_t large = kSanitized ? 600'001 : 1'400'001;
  for (const char* algorithm : {"auto", "ring", "direct"}) {
    expect_bits_of_the_host(2, {{"algorithm", algorithm}}, {DType::kFloat32}, reductions, {large});
    expect_bits_of_the_host(2, {{"algorithm", algorithm}}, {DType::kBfloat16}, reductions, {70'001});
  }
}

// An all-reduce of one buffer on the first GPU, in place.
struct Reduced {
  explicit Reduced(size_t count = 1000, int index = 0)
      : count(count), device(gpu(index)), access(device), memory(device->allocate(nbytes()).value()) {
    fill(1);
  }
  size_t nbytes() const { return count * sizeof(float); }
  void fill(float value) { access.write(memory.get(), std::vector<float>(count, value)); }
  std::vector<float> values() { return access.read<float>(memory.get(), count); }
  std::vector<float> all(float value) const { return std::vector<float>(count, value); }
  Result<std::shared_ptr<Operation>> begin(Session& session, const CallOptions& options = {},
                                           Mode mode = Mode::kQueue) const {
    return dsgd::begin(
        session.allreduce(memory.get(), memory.get(), nbytes(), DType::kFloat32, Reduction::kSum, options),
        mode);
  }
  const size_t count;
  const std::shared_ptr<device::Device> device;
  device::Access access;
  std::shared_ptr<void> memory;
};

// A session after an all-reduce of a buffer, which makes what dsgd needs: later collectives allocate nothing,
// so a stream may hold meanwhile.
struct Prepared {
  explicit Prepared(const Settings& settings = {}, size_t count = 1000)
      : session(open(settings)), reduced(count) {
    ok(wait_for(*session, reduced.begin(*session)));
  }
  const std::shared_ptr<Session> session;
  Reduced reduced;
};

// Returns when the loop has done all that calls have posted so far.
void settle(Session& session) { ok(session.barrier(Mode::kWait, {.channel = 3}).status()); }

TEST_F(GpuCollectives, ReadWhatTheStreamWritesLater) {
  run_ranks(2, {}, [](int rank, const Settings& settings) {
    auto [session, reduced] = Prepared(settings);
    Reduced part, out(2000);
    {
      HeldStream stream;
      ok(session->barrier(Mode::kWait)
             .status());  // an allocation of the other rank would wait for the stream
      stream.hold();
      for (const Reduced* written : {&reduced, &part})
        stream.fill(written->memory.get(), written->count, static_cast<float>(3 + rank));
      auto sum = reduced.begin(*session, {.stream = stream});
      const size_t half = part.nbytes();
      auto gathered = begin(session->allgather(part.memory.get(), half, out.memory.get(), 2 * half, nullptr,
                                               DType::kFloat32, {.channel = 1, .stream = stream}),
                            Mode::kQueue);
      settle(*session);
      EXPECT_FALSE(sum.value()->done() || gathered.value()->done());
      const Status waiting = session->wait(*sum.value(), 1ms);
      EXPECT_EQ(waiting.code(), Code::kWaitTimeout);
      EXPECT_EQ(waiting.rank(), rank);
      EXPECT_THAT(waiting.message(), HasSubstr("this worker has not copied its buffer from its GPU yet"));
      ASSERT_TRUE(stream.held());
      stream.release();
      ok(wait_for(*session, gathered));
      ok(wait_for(*session, sum));
      EXPECT_EQ(reduced.values(), reduced.all(7));
      std::vector<float> both = part.all(3);
      both.resize(out.count, 4);
      EXPECT_EQ(out.values(), both);
    }
    ok(session->close(10s));
  });
}

// Reads of the output that the stream holds before the call come first, though the input is the host's.
TEST_F(GpuCollectives, WriteAfterWhatTheStreamHolds) {
  auto [session, to] = Prepared();
  const std::vector<float> from(to.count, 5);
  {
    HeldStream stream;
    stream.hold();
    const float* seen = stream.read(to.memory.get(), to.count);
    auto operation = begin(session->allreduce(from.data(), to.memory.get(), to.nbytes(), DType::kFloat32,
                                              Reduction::kSum, {.stream = stream}),
                           Mode::kQueue);
    settle(*session);
    EXPECT_FALSE(operation.value()->done());
    stream.release();
    ok(wait_for(*session, operation));
    stream.finish();
    EXPECT_EQ(std::vector<float>(seen, seen + to.count), to.all(1));
    EXPECT_EQ(to.values(), from);
  }
  ok(session->close(10s));
}

// Without a stream, the default one counts.
TEST_F(GpuCollectives, FollowTheDefaultStream) {
  auto session = open();
  Reduced reduced;
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, reduced.nbytes(), cudaHostAllocPortable), cudaSuccess);
  for (int round = 1; round <= 20; ++round) {
    std::fill_n(static_cast<float*>(pinned), reduced.count, static_cast<float>(round));
    ASSERT_EQ(
        cudaLaunchHostFunc(nullptr, [](void*) { std::this_thread::sleep_for(200us); }, nullptr), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(reduced.memory.get(), pinned, reduced.nbytes(), cudaMemcpyDefault, nullptr),
              cudaSuccess);
    ok(wait_for(*session, reduced.begin(*session, {}, Mode::kWait)));
    EXPECT_EQ(reduced.values(), reduced.all(static_cast<float>(round)));
    reduced.fill(1000);
  }
  ok(session->close(10s));
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

// More than are open at once. Rank 1 has all buffers on the host. In channel 1, where one is open at a time,
// the workers would wait for each other if rank 0 began another one first.
void wait_for_a_stream(uint32_t channel) {
  run_ranks(2, {{"step_timeout", "20s"}}, [channel](int rank, const Settings& settings) {
    auto [session, first] = Prepared(settings);
    std::vector<std::vector<float>> host;
    for (int i = 0; i < 12; ++i) host.emplace_back(first.count, static_cast<float>(i));
    {
      HeldStream stream;
      ok(session->barrier(Mode::kWait)
             .status());  // an allocation of the other rank would wait for the stream
      std::vector<std::shared_ptr<Operation>> operations;
      if (rank == 0) {
        stream.hold();
        stream.fill(first.memory.get(), first.count, 20);
        operations.push_back(first.begin(*session, {.channel = channel, .stream = stream}).value());
      }
      for (size_t i = operations.size(); i < host.size(); ++i) {
        operations.push_back(begin(session->allreduce(host[i].data(), host[i].data(), first.nbytes(),
                                                      DType::kFloat32, Reduction::kSum, {.channel = channel}),
                                   Mode::kQueue)
                                 .value());
      }
      ok(session->barrier(Mode::kWait, {.channel = 2}).value()->status());  // another channel goes on
      if (rank == 0) {
        EXPECT_FALSE(operations[0]->done());
        ASSERT_TRUE(stream.held());
        stream.release();
      }
      for (const auto& operation : operations) ok(session->wait(*operation, -1ms));
      if (rank == 0) {
        EXPECT_EQ(first.values(), first.all(20));
      } else {
        EXPECT_EQ(host[0], first.all(20));
      }
      for (size_t i = 1; i < host.size(); ++i) EXPECT_EQ(host[i], first.all(static_cast<float>(2 * i))) << i;
    }
    ok(session->close(10s));
  });
}

TEST_F(GpuCollectives, KeepTheirPlaceInTheChannelWhileTheyWaitForAStream) {
  for (const uint32_t channel : {0u, 1u}) wait_for_a_stream(channel);
}

TEST_F(GpuCollectives, AStreamHoldsUpNoOtherChannel) {
  auto [session, reduced] = Prepared();
  Reduced other;
  {
    HeldStream stream;
    stream.hold();
    auto held = reduced.begin(*session, {.channel = 1, .stream = stream});
    for (int i = 0; i < 3; ++i) ok(wait_for(*session, other.begin(*session, {.timeout = 5s}, Mode::kWait)));
    EXPECT_FALSE(held.value()->done());
    ASSERT_TRUE(stream.held());
    stream.release();
    ok(wait_for(*session, held));
  }
  ok(session->close(10s));
}

TEST_F(GpuCollectives, TimeOutOnAllWorkersWhileAStreamIsHeld) {
  std::atomic<int> over{0};
  run_ranks(2, {}, [&over](int rank, const Settings& settings) {
    auto [session, reduced] = Prepared(settings);
    std::vector<float> host(1000, 1);
    {
      HeldStream stream;
      ok(session->barrier(Mode::kWait).status());
      if (rank == 0) stream.hold();
      const auto begun = std::chrono::steady_clock::now();
#ifndef DSGD_TEST_PLUGIN
      const size_t copies = fake_cuda::copies();
#endif
      const Status status =
          rank == 0 ? wait_for(*session, reduced.begin(*session, {.timeout = 200ms, .stream = stream}))
                    : wait_for(*session, begin(session->allreduce(host.data(), host.data(), reduced.nbytes(),
                                                                  DType::kFloat32, Reduction::kSum),
                                               Mode::kWait));
      EXPECT_LT(std::chrono::steady_clock::now() - begun, 5s);
      EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
      EXPECT_EQ(status.rank(), 0);
      EXPECT_EQ(status.operation(), "all-reduce");
      EXPECT_THAT(
          status.message(),
          AllOf(HasSubstr("rank 0"), HasSubstr("all-reduce cannot read its buffer: the work that `stream` "
                                               "held on cuda:0 at the call has not ended within timeout = "
                                               "200 ms, so the buffer was not read")));
      EXPECT_TRUE(stream.held());
#ifndef DSGD_TEST_PLUGIN
      EXPECT_EQ(fake_cuda::copies(), copies) << "enqueued work cannot be taken back";
#endif
      ++over;
      while (over < 2) std::this_thread::yield();
    }
    reduced.fill(3);
    ok(wait_for(*session, reduced.begin(*session)));
    EXPECT_EQ(reduced.values(), reduced.all(6));
    ok(session->close(10s));
  });
}

TEST_F(GpuCollectives, WriteNothingAfterATimeout) {
  auto [session, to] = Prepared();
  const std::vector<float> from(to.count, 5);
  {
    HeldStream stream;
    stream.hold();
    auto operation = begin(session->allreduce(from.data(), to.memory.get(), to.nbytes(), DType::kFloat32,
                                              Reduction::kSum, {.timeout = 100ms, .stream = stream}),
                           Mode::kQueue);
    const Status status = wait_for(*session, operation);
    EXPECT_EQ(status.code(), Code::kTimeout);
    EXPECT_THAT(status.message(),
                HasSubstr("all-reduce cannot write its result: the work that `stream` held"));
    ASSERT_TRUE(stream.held());
  }
  Reduced other;
  for (int i = 0; i < 3; ++i) ok(wait_for(*session, other.begin(*session)));
  EXPECT_EQ(to.values(), to.all(1));
  ok(session->close(10s));
}

TEST_F(GpuCollectives, EndWithTheSessionWhileAStreamIsHeld) {
  for (const bool abort : {true, false}) {
    SCOPED_TRACE(abort ? "abort" : "close");
    auto [session, reduced] = Prepared({{"lease", "1s"}, {"heartbeat_interval", "100ms"}});
    {
      HeldStream stream;
      stream.hold();
      auto operation = reduced.begin(*session, {.stream = stream});
      settle(*session);
      ASSERT_FALSE(operation.value()->done());
      if (abort) {
        ok(session->abort("a test"));
        EXPECT_EQ(wait_for(*session, operation).code(), Code::kAborted);
      } else {
        ok(session->close(0ms));
        EXPECT_EQ(operation.value()->status().code(), Code::kClosed);
      }
      ASSERT_TRUE(stream.held());
#ifndef DSGD_TEST_PLUGIN
      stream.fill(reduced.memory.get(), reduced.count, 9);
#endif
      stream.release();
    }
    (void)session->close(10s);
  }
}

TEST_F(GpuCollectives, NeedNoReplica) {
  for (int index = 0; index < device::gpus(); ++index) {
    auto session = open();
    Reduced reduced(10, index);
    ok(wait_for(*session, reduced.begin(*session, {}, Mode::kWait)));
    const Replica* replica = session->add_replica("cuda:" + std::to_string(index)).value();
    ok(wait_for(*session, reduced.begin(*session, {}, Mode::kWait)));
    EXPECT_EQ(session->add_replica("cuda:" + std::to_string(index)).value()->device, replica->device);
    ok(session->close(10s));
  }
}

TEST_F(GpuCollectives, RefuseBuffersThatTheyCannotUse) {
  auto session = open();
  Reduced reduced, other(1000, device::gpus() - 1);
  const HostStream stream, of_other(device::gpus() - 1);
  std::vector<float> host(1000);
  const auto refused = [&](const void* send, void* receive, void* in, const std::string& says) {
    auto operation =
        begin(session->allreduce(send, receive, 4000, DType::kFloat32, Reduction::kSum, {.stream = in}),
              Mode::kQueue);
    EXPECT_EQ(operation.status().code(), Code::kInvalidArgument) << operation.status().message();
    EXPECT_THAT(operation.status().message(), HasSubstr(says));
  };
  refused(host.data(), host.data(), stream, "all-reduce: a stream is given, but the buffers are host memory");
  if (device::gpus() > 1) {
    refused(reduced.memory.get(), other.memory.get(), nullptr,
            "all-reduce: `send` is memory of cuda:0 and `receive` is memory of cuda:1; give both on one GPU");
    refused(reduced.memory.get(), reduced.memory.get(), of_other,
            "all-reduce: the stream cannot be used: cuda:0");
  }
#ifndef DSGD_TEST_PLUGIN  // CUDA rounds allocations up
  refused(static_cast<float*>(reduced.memory.get()) + 1, host.data(), nullptr,
          "all-reduce: `send` is memory of cuda:0 at one end only, so its size of 4000 bytes is wrong");
  {
    const fake_cuda::Capture capture(stream);
    refused(reduced.memory.get(), reduced.memory.get(), stream, "is being captured into a graph");
    EXPECT_FALSE(capture.spoiled());
  }
  {
    const HostStream blocking(0, cudaStreamDefault);
    const fake_cuda::Capture capture(blocking);
    const auto later = reduced.begin(*session);
    EXPECT_EQ(later.status().code(), Code::kState) << later.status().message();
    ok(wait_for(*session, reduced.begin(*session, {.stream = stream})));  // another stream is fine
    EXPECT_FALSE(capture.spoiled());
  }
  void* const freed = std::exchange(reduced.memory, nullptr).get();
  refused(freed, freed, stream, "or memory of a GPU that was freed");
#endif
  ok(session->barrier(Mode::kWait).status());  // a refused call is none
  ok(session->close(10s));
}

#ifndef DSGD_TEST_PLUGIN  // what follows holds the fake runtime up, or lets its calls fail

// Two pieces are in flight when the session is aborted. The operation ends when they have ended.
TEST_F(GpuCollectives, AnAbortWaitsForPiecesInFlight) {
  for (const auto direction : {fake_cuda::HoldCopies::kToHost, fake_cuda::HoldCopies::kToDevice}) {
    auto [session, reduced] = Prepared({}, 2'000'000);  // eight pieces
    auto held = std::make_unique<fake_cuda::HoldCopies>(direction);
    const size_t before = fake_cuda::copies();
    auto operation = reduced.begin(*session);
    const size_t in_flight = direction == fake_cuda::HoldCopies::kToHost ? 2 : 8 + 2;
    wait_for_copies(before, in_flight);
    ok(session->abort("a test"));
    EXPECT_EQ(session->wait(*operation.value(), 100ms).code(), Code::kWaitTimeout);
    held.reset();
    EXPECT_EQ(session->wait(*operation.value(), -1ms).code(), Code::kAborted);
    EXPECT_EQ(fake_cuda::copies(), before + in_flight);
    (void)session->close(10s);
  }
}

TEST_F(GpuCollectives, AGpuThatHangsEndsThemAllTheSame) {
  for (const auto direction : {fake_cuda::HoldCopies::kToHost, fake_cuda::HoldCopies::kToDevice}) {
    for (const bool abort : {false, true}) {
      SCOPED_TRACE(std::string(abort ? "abort" : "timeout") + " " + std::to_string(direction));
      auto [session, reduced] = Prepared({{"lease", "1s"}, {"heartbeat_interval", "100ms"}});
      {
        const fake_cuda::HoldCopies held(direction);
        const size_t before = fake_cuda::copies();
        const auto begun = std::chrono::steady_clock::now();
        auto operation = reduced.begin(*session, {.timeout = abort ? 60s : 100ms});
        wait_for_copies(before, direction == fake_cuda::HoldCopies::kToHost ? 1 : 2);
        if (abort) ok(session->abort("a test"));
        const Status status = session->wait(*operation.value(), -1ms);
        EXPECT_LT(std::chrono::steady_clock::now() - begun, 20s);
        EXPECT_EQ(status.code(), abort ? Code::kAborted : Code::kTimeout);
        EXPECT_THAT(status.message(), AllOf(HasSubstr("cuda:0 hangs, and may still use the buffer"),
                                            HasSubstr(direction == fake_cuda::HoldCopies::kToHost
                                                          ? "cannot read its buffer"
                                                          : "cannot write its result")));
      }
      (void)session->close(10s);
    }
  }
}

TEST_F(GpuCollectives, AFailureOfTheDeviceIsToldToAllWorkersAndTheSessionGoesOn) {
  for (const char* function : {"cudaMemcpyAsync", "cudaHostAlloc"}) {
    SCOPED_TRACE(function);
    run_ranks(2, {}, [function](int rank, const Settings& settings) {
      auto session = open(settings);
      Reduced reduced;
      std::vector<float> host(1000, 1);
      void* const data = rank == 0 ? reduced.memory.get() : host.data();
      const auto sum = [&] {
        return wait_for(
            *session,
            begin(session->allreduce(data, data, 4000, DType::kFloat32, Reduction::kSum), Mode::kWait));
      };
      ok(wait_for(*session, session->barrier(Mode::kWait)));
      if (rank == 0) fake_cuda::fail(function, cudaErrorInvalidValue);
      const Status status = sum();
      EXPECT_EQ(status.code(), Code::kInternal) << status.message();
      EXPECT_EQ(status.rank(), 0);
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr("rank 0"), HasSubstr("all-reduce cannot read its buffer: cuda:0: "),
                        HasSubstr(function)));
      ok(sum());
      ok(session->close(10s));
    });
  }
}

// As a kernel that wrote where it may not leaves it.
TEST_F(GpuCollectives, ABrokenDeviceEndsTheCollectivesOnIt) {
  auto [session, reduced] = Prepared();
  {
    HeldStream stream;
    stream.hold();
    auto operation = reduced.begin(*session, {.stream = stream});
    settle(*session);
    fake_cuda::break_device(0, cudaErrorIllegalAddress);
    const Status status = wait_for(*session, operation);
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("cudaErrorIllegalAddress"));
    EXPECT_FALSE(wait_for(*session, reduced.begin(*session)).ok());
    fake_cuda::repair_device(0);
    stream.release();
  }
  ok(wait_for(*session, reduced.begin(*session)));
  ok(session->close(10s));
}

// After the first call nothing is made but one event for each call.
TEST_F(GpuCollectives, UseTheSameQueuesAndPinnedMemoryAgain) {
  auto session = open();
  Reduced reduced(3'000'000);
  ok(wait_for(*session, reduced.begin(*session)));
  const fake_cuda::Alive alive = fake_cuda::alive();
  for (int i = 0; i < 10; ++i) ok(wait_for(*session, reduced.begin(*session)));
  EXPECT_EQ(fake_cuda::alive().streams, alive.streams);
  EXPECT_EQ(fake_cuda::alive().allocations, alive.allocations);
  EXPECT_TRUE(fake_cuda::wait_for(alive));
  ok(session->close(10s));
}

#endif

}  // namespace
}  // namespace dsgd

// Collectives against plain loops: every dtype, reduction, algorithm; sizes on both sides of each path (one
// hop, small and large chunks); uneven and empty parts; several in flight; and what happens when workers
// disagree.

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

#include "plugins.h"
#include "tests/unit/sanitizer.h"

namespace dsgd_test::collectives_test {
namespace {

constexpr int32_t kDtypes[] = {DSGD_FLOAT32, DSGD_FLOAT64,  DSGD_INT32, DSGD_INT64, DSGD_UINT8,
                               DSGD_FLOAT16, DSGD_BFLOAT16, DSGD_INT8,  DSGD_UINT64};
constexpr int32_t kReductions[] = {DSGD_SUM, DSGD_MIN, DSGD_MAX, DSGD_PROD, DSGD_MEAN};

// Small integers, so that sums and products are exact in every dtype.
double element(int rank, size_t index) {
  return static_cast<double>((index * 7 + static_cast<size_t>(rank) * 3) % 3 + 1);
}

double reduce(int32_t reduction, int workers, size_t index) {
  double result = element(0, index);
  for (int rank = 1; rank < workers; ++rank) {
    const double next = element(rank, index);
    switch (reduction) {
      case DSGD_MIN:
        result = std::min(result, next);
        break;
      case DSGD_MAX:
        result = std::max(result, next);
        break;
      case DSGD_PROD:
        result *= next;
        break;
      default:
        result += next;
    }
  }
  return reduction == DSGD_MEAN ? result / workers : result;
}

// Half types, as far as positive normal numbers go: bits of the fraction, and what exponents are counted
// from.
uint16_t half_bits(double value, int fraction, int bias) {
  int exponent;
  const double mantissa = std::frexp(value, &exponent);  // 1/2 and more
  // One bit more: the leading one.
  const auto rounded = static_cast<uint32_t>(std::nearbyint(std::ldexp(mantissa, fraction + 1)));
  return static_cast<uint16_t>((static_cast<uint32_t>(exponent - 2 + bias) << fraction) + rounded);
}
double half_value(uint16_t bits, int fraction, int bias) {
  const uint32_t one = 1u << fraction;
  return std::ldexp(static_cast<double>(one + bits % one), bits / static_cast<int>(one) - bias - fraction);
}

// A buffer of any dtype, seen as numbers.
class Buffer {
 public:
  Buffer(int32_t dtype, size_t count) : dtype_(dtype), bytes_(count * dsgd_dtype_size(dtype) + 1) {}
  void* data() { return bytes_.data(); }
  size_t nbytes() const { return bytes_.size() - 1; }
  size_t count() const { return nbytes() / dsgd_dtype_size(dtype_); }
  void set(size_t index, double value) {
    switch (dtype_) {
      case DSGD_FLOAT32:
        return put(index, static_cast<float>(value));
      case DSGD_FLOAT64:
        return put(index, value);
      case DSGD_INT32:
        return put(index, static_cast<int32_t>(value));
      case DSGD_INT64:
        return put(index, static_cast<int64_t>(value));
      case DSGD_FLOAT16:
        return put(index, half_bits(value, 10, 15));
      case DSGD_BFLOAT16:
        return put(index, half_bits(value, 7, 127));
      case DSGD_INT8:
        return put(index, static_cast<int8_t>(static_cast<int64_t>(value)));  // wraps around
      case DSGD_UINT64:
        return put(index, static_cast<uint64_t>(value));
      default:
        return put(index, static_cast<uint8_t>(value));
    }
  }
  double get(size_t index) const {
    switch (dtype_) {
      case DSGD_FLOAT32:
        return at<float>(index);
      case DSGD_FLOAT64:
        return at<double>(index);
      case DSGD_INT32:
        return at<int32_t>(index);
      case DSGD_INT64:
        return static_cast<double>(at<int64_t>(index));
      case DSGD_FLOAT16:
        return half_value(at<uint16_t>(index), 10, 15);
      case DSGD_BFLOAT16:
        return half_value(at<uint16_t>(index), 7, 127);
      case DSGD_INT8:
        return at<int8_t>(index);
      case DSGD_UINT64:
        return static_cast<double>(at<uint64_t>(index));
      default:
        return at<uint8_t>(index);
    }
  }

 private:
  template <typename T>
  void put(size_t index, T value) {
    std::memcpy(bytes_.data() + index * sizeof value, &value, sizeof value);
  }
  template <typename T>
  T at(size_t index) const {
    T value;
    std::memcpy(&value, bytes_.data() + index * sizeof value, sizeof value);
    return value;
  }
  int32_t dtype_;
  std::vector<unsigned char> bytes_;
};

class Collectives : public testing::TestWithParam<int> {};

TEST_P(Collectives, AllReduceEqualsPlainLoops) {
  const int workers = GetParam();
  for (const char* algorithm :
       {"auto", "direct", "halving_doubling", "ring", "my_ring", "my_doubling", "my_tree"}) {
    run_job(
        workers, {{"algorithm", algorithm}},
        [&](dsgd_session* session, int rank) {
          for (int32_t dtype : kDtypes) {
            for (int32_t reduction : kReductions) {
              const bool half = dtype == DSGD_FLOAT16 || dtype == DSGD_BFLOAT16;
              if (reduction == DSGD_MEAN && dtype != DSGD_FLOAT32 && dtype != DSGD_FLOAT64 && !half) continue;
              for (size_t count : {0, 1, 15, 1000, dtype == DSGD_FLOAT32 ? 100'003 : 20'011}) {
                Buffer buffer(dtype, count);
                for (size_t i = 0; i < count; ++i) buffer.set(i, element(rank, i));
                DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, buffer.data(), buffer.data(),
                                               buffer.nbytes(), dtype, reduction, nullptr, nullptr, error_));
                for (size_t i = 0; i < count; ++i) {
                  double expected = reduce(reduction, workers, i);
                  if (half || dtype == DSGD_INT8) {  // rounded once, from float32; or wrapped around
                    Buffer rounded(dtype, 1);
                    rounded.set(0, expected);
                    expected = rounded.get(0);
                  }
                  const double tolerance = reduction == DSGD_MEAN && !half ? 1e-6 * expected : 0;
                  ASSERT_NEAR(buffer.get(i), expected, tolerance)
                      << algorithm << " dtype " << dtype << " reduction " << reduction << " element " << i
                      << " of " << count;
                }
              }
            }
          }
        },
        register_all);
  }
}

// Numbers whose order depends on the sign, and sums that leave the type.
TEST_P(Collectives, SmallAndUnsignedIntegersCompareAndWrapAsTheirTypesDo) {
  const int workers = GetParam();
  run_job(workers, {}, [&](dsgd_session* session, int rank) {
    const auto reduced = [&](auto value, int32_t dtype, int32_t reduction) {
      Error error;
      EXPECT_EQ(dsgd_allreduce(session, nullptr, &value, &value, sizeof value, dtype, reduction, nullptr,
                               nullptr, error),
                DSGD_OK)
          << error.message();
      return value;
    };
    const bool last = rank == workers - 1;
    const int8_t small = last ? -128 : 127;
    const uint64_t large = last ? uint64_t{1} << 63 : 1;
    const bool alone = workers == 1;
    EXPECT_EQ(reduced(small, DSGD_INT8, DSGD_MIN), -128);
    EXPECT_EQ(reduced(small, DSGD_INT8, DSGD_MAX), alone ? -128 : 127);
    EXPECT_EQ(reduced(small, DSGD_INT8, DSGD_SUM), static_cast<int8_t>(127 * (workers - 1) - 128));
    EXPECT_EQ(reduced(large, DSGD_UINT64, DSGD_MIN), alone ? uint64_t{1} << 63 : 1);
    EXPECT_EQ(reduced(large, DSGD_UINT64, DSGD_MAX), uint64_t{1} << 63);
    EXPECT_EQ(reduced(UINT64_MAX, DSGD_UINT64, DSGD_SUM), uint64_t{0} - static_cast<uint64_t>(workers));
    uint64_t product = 1;
    for (int worker = 0; worker < workers; ++worker) product *= uint64_t{1} << 63 | 3;
    EXPECT_EQ(reduced(uint64_t{1} << 63 | 3, DSGD_UINT64, DSGD_PROD), product);
  });
}

TEST_P(Collectives, LargeBuffersTravelInManyChunks) {
  const int workers = GetParam();
  const size_t count = kSanitized ? 300'011 : 2'000'011;
  for (const char* algorithm : {"direct", "halving_doubling", "ring", "my_ring", "my_doubling", "my_tree"}) {
    run_job(
        workers, {{"algorithm", algorithm}},
        [&](dsgd_session* session, int rank) {
          std::vector<float> data(count);
          for (size_t i = 0; i < count; ++i) data[i] = static_cast<float>(element(rank, i));
          DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, data.data(), data.data(), count * 4, DSGD_FLOAT32,
                                         DSGD_SUM, nullptr, nullptr, error_));
          for (size_t i = 0; i < count; ++i)
            ASSERT_EQ(data[i], reduce(DSGD_SUM, workers, i)) << algorithm << ' ' << i;
          const int root = workers - 1;
          for (size_t i = 0; i < count; ++i) data[i] = rank == root ? static_cast<float>(i) : -1;
          DSGD_OK_OR_FAIL(dsgd_broadcast(session, nullptr, data.data(), count * 4, DSGD_FLOAT32, root,
                                         nullptr, nullptr, error_));
          for (size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], static_cast<float>(i));
        },
        register_all);
  }
}

// Too little receive memory for large windows: more, smaller chunks, the same result.
TEST_P(Collectives, ALittleReceiveMemoryIsEnough) {
  const int workers = GetParam();
  run_job(workers, {{"receive_memory", "1M"}}, [&](dsgd_session* session, int rank) {
    const size_t count = 300'000;
    std::vector<float> data(count);
    for (size_t i = 0; i < count; ++i) data[i] = static_cast<float>(element(rank, i));
    DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, data.data(), data.data(), count * 4, DSGD_FLOAT32,
                                   DSGD_SUM, nullptr, nullptr, error_));
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], reduce(DSGD_SUM, workers, i));
  });
}

TEST_P(Collectives, GatherScatterAndBroadcastWithUnevenParts) {
  const int workers = GetParam();
  run_job(workers, {}, [&](dsgd_session* session, int rank) {
    for (size_t unit : {1, 1000, 100000}) {
      // Rank r has r units, so rank 0 has none.
      std::vector<size_t> counts(static_cast<size_t>(workers));
      for (int r = 0; r < workers; ++r) counts[static_cast<size_t>(r)] = unit * static_cast<size_t>(r);
      const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
      const size_t first = std::accumulate(counts.begin(), counts.begin() + rank, size_t{0}),
                   mine = counts[rank];
      std::vector<int64_t> send(mine), all(total, -1);
      for (size_t i = 0; i < mine; ++i) send[i] = static_cast<int64_t>(first + i);
      DSGD_OK_OR_FAIL(dsgd_allgather(session, nullptr, send.data(), mine * 8, all.data(), total * 8,
                                     counts.data(), DSGD_INT64, nullptr, nullptr, error_));
      for (size_t i = 0; i < total; ++i) ASSERT_EQ(all[i], static_cast<int64_t>(i));

      std::vector<float> whole(total), part(mine, -1);
      for (size_t i = 0; i < total; ++i) whole[i] = static_cast<float>(element(rank, i));
      const std::vector<float> before = whole;
      DSGD_OK_OR_FAIL(dsgd_reduce_scatter(session, nullptr, whole.data(), total * 4, part.data(), mine * 4,
                                          counts.data(), DSGD_FLOAT32, DSGD_SUM, nullptr, nullptr, error_));
      for (size_t i = 0; i < mine; ++i) ASSERT_EQ(part[i], reduce(DSGD_SUM, workers, first + i));
      ASSERT_EQ(whole, before) << "reduce-scatter wrote into what it sends";
      // In place: the part is where it lies in the whole.
      DSGD_OK_OR_FAIL(dsgd_reduce_scatter(session, nullptr, whole.data(), total * 4, whole.data() + first,
                                          mine * 4, counts.data(), DSGD_FLOAT32, DSGD_MEAN, nullptr, nullptr,
                                          error_));
      for (size_t i = 0; i < mine; ++i) {
        ASSERT_NEAR(whole[first + i], reduce(DSGD_MEAN, workers, first + i), 1e-6);
      }
    }
    for (int root = 0; root < workers; ++root) {
      for (size_t count : {0, 1, 70000}) {
        std::vector<uint8_t> data(count, static_cast<uint8_t>(rank == root ? root + 1 : 99));
        DSGD_OK_OR_FAIL(
            dsgd_broadcast(session, nullptr, data.data(), count, DSGD_UINT8, root, nullptr, nullptr, error_));
        for (uint8_t byte : data) ASSERT_EQ(byte, root + 1);
      }
    }
  });
}

TEST_P(Collectives, ManyMayBeInFlightAndTheQueueReturnsEachOnce) {
  const int workers = GetParam();
  run_job(workers, {}, [&](dsgd_session* session, int rank) {
    constexpr size_t kOps = 40;
    std::vector<std::vector<float>> data(kOps);
    std::vector<dsgd_op*> ops(kOps);
    for (size_t n = 0; n < kOps; ++n) {
      data[n].resize(n * 3001);
      for (size_t i = 0; i < data[n].size(); ++i) data[n][i] = static_cast<float>(element(rank, i + n));
      DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, data[n].data(), data[n].data(), data[n].size() * 4,
                                     DSGD_FLOAT32, DSGD_SUM, nullptr, &ops[n], error_));
    }
    std::map<dsgd_op*, int> returned;
    while (returned.size() < kOps) {
      dsgd_op* ended[7];
      size_t count = 0;
      DSGD_OK_OR_FAIL(dsgd_queue_poll(session, ended, 7, 10000, &count, error_));
      for (size_t i = 0; i < count; ++i) {
        ++returned[ended[i]];
        dsgd_op_free(ended[i]);
      }
    }
    for (size_t n = 0; n < kOps; ++n) {
      ASSERT_EQ(returned[ops[n]], 1);
      DSGD_OK_OR_FAIL(dsgd_op_wait(ops[n], 0, error_));
      for (size_t i = 0; i < data[n].size(); ++i) ASSERT_EQ(data[n][i], reduce(DSGD_SUM, workers, i + n));
      dsgd_op_free(ops[n]);
    }
    size_t count = 0;
    dsgd_op* none;
    EXPECT_EQ(dsgd_queue_poll(session, &none, 1, 0, &count, nullptr), DSGD_ERR_WAIT_TIMEOUT);
  });
}

TEST_P(Collectives, CountsThatWrapAroundAreRefused) {
  const int workers = GetParam();
  if (workers < 2) return;
  run_job(workers, {}, [&](dsgd_session* session, int) {
    float data[4] = {}, part[4] = {};
    std::vector<size_t> counts(static_cast<size_t>(workers), 0);
    counts[0] = SIZE_MAX;
    counts[1] = 5;  // 4 in all, modulo 2^64
    EXPECT_EQ(dsgd_allgather(session, nullptr, part, 0, data, sizeof data, counts.data(), DSGD_FLOAT32,
                             nullptr, nullptr, nullptr),
              DSGD_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(dsgd_reduce_scatter(session, nullptr, data, sizeof data, part, sizeof part, counts.data(),
                                  DSGD_FLOAT32, DSGD_SUM, nullptr, nullptr, nullptr),
              DSGD_ERR_INVALID_ARGUMENT);
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
  });
}

// The bindings end their counts with SIZE_MAX, as a view may have more workers than the host has given
// counts.
TEST_P(Collectives, NoCountIsReadAfterOneThatExceedsTheBuffer) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const pages = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  void* const end = static_cast<char*>(pages) + page;
  ASSERT_EQ(mprotect(end, page, PROT_NONE), 0);
  size_t* const counts = static_cast<size_t*>(end) - 1;
  *counts = SIZE_MAX;
  run_job(GetParam(), {}, [&](dsgd_session* session, int) {
    float data[4] = {}, part[4] = {};
    EXPECT_EQ(dsgd_allgather(session, nullptr, part, 0, data, sizeof data, counts, DSGD_FLOAT32, nullptr,
                             nullptr, nullptr),
              DSGD_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(dsgd_reduce_scatter(session, nullptr, data, sizeof data, part, sizeof part, counts,
                                  DSGD_FLOAT32, DSGD_SUM, nullptr, nullptr, nullptr),
              DSGD_ERR_INVALID_ARGUMENT);
  });
  munmap(pages, 2 * page);
}

INSTANTIATE_TEST_SUITE_P(Workers, Collectives,
                         testing::ValuesIn(kSanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 5}),
                         [](const auto& info) { return "W" + std::to_string(info.param); });

// Two calls that do not match: both sides are named on every worker, and the session goes on.
struct Mismatch {
  const char* name;
  std::function<int32_t(dsgd_session*, dsgd_error**)> usual, other;
  const char* said;  // part of the message
};

class Disagreement : public testing::TestWithParam<Mismatch> {};

TEST_P(Disagreement, FailsOnAllWorkersNamingBothAndTheSessionGoesOn) {
  const Mismatch& mismatch = GetParam();
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    for (int odd = 0; odd < 3; ++odd) {
      Error error;
      const int32_t status = rank == odd ? mismatch.other(session, error) : mismatch.usual(session, error);
      ASSERT_EQ(status, DSGD_ERR_MISMATCH) << error.message();
      ASSERT_NE(error.message().find("rank " + std::to_string(odd)), std::string::npos) << error.message();
      ASSERT_NE(error.message().find(mismatch.said), std::string::npos) << error.message();
      DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
    }
  });
}

// All that wait know who has begun: the one that has not is named, and not those that wait, too.
TEST(Timeout, NamesTheWorkerThatDoesNotCome) {
  for (const char* algorithm : {"auto", "direct"}) {
    std::atomic<int> told{0};
    run_job(4, {{"step_timeout", "1s"}, {"algorithm", algorithm}}, [&](dsgd_session* session, int rank) {
      DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
      if (rank == 2) {
        while (told < 3) std::this_thread::yield();
        return;
      }
      std::vector<float> data(100000, 1);
      Error error;
      EXPECT_EQ(dsgd_allreduce(session, nullptr, data.data(), data.data(), data.size() * sizeof(float),
                               DSGD_FLOAT32, DSGD_SUM, nullptr, nullptr, error),
                DSGD_ERR_TIMEOUT);
      EXPECT_EQ(error.rank(), 2) << error.message();
      EXPECT_NE(error.message().find("still waiting for rank 2 (worker"), std::string::npos)
          << error.message();
      for (const char* other : {"rank 0 (", "rank 1 (", "rank 3 ("}) {
        EXPECT_EQ(error.message().find(other), std::string::npos) << error.message();
      }
      ++told;
    });
  }
}

int32_t sum(dsgd_session* session, size_t count, int32_t dtype, int32_t reduction, dsgd_error** error) {
  static thread_local std::vector<double> data(1 << 20);
  return dsgd_allreduce(session, nullptr, data.data(), data.data(), count * dsgd_dtype_size(dtype), dtype,
                        reduction, nullptr, nullptr, error);
}

int32_t gather(dsgd_session* session, const std::array<size_t, 3>& counts, dsgd_error** error) {
  const size_t total = counts[0] + counts[1] + counts[2];
  std::vector<float> part(counts[static_cast<size_t>(dsgd_rank(session))] + 1), all(total);
  return dsgd_allgather(session, nullptr, part.data(), (part.size() - 1) * 4, all.data(), total * 4,
                        counts.data(), DSGD_FLOAT32, nullptr, nullptr, error);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, Disagreement,
    testing::Values(
        Mismatch{"count", [](auto s, auto e) { return sum(s, 100, DSGD_FLOAT32, DSGD_SUM, e); },
                 [](auto s, auto e) { return sum(s, 101, DSGD_FLOAT32, DSGD_SUM, e); }, "101 elements"},
        Mismatch{"count_of_large", [](auto s, auto e) { return sum(s, 500000, DSGD_FLOAT32, DSGD_SUM, e); },
                 [](auto s, auto e) { return sum(s, 600000, DSGD_FLOAT32, DSGD_SUM, e); }, "600000 elements"},
        Mismatch{"dtype", [](auto s, auto e) { return sum(s, 100, DSGD_FLOAT32, DSGD_SUM, e); },
                 [](auto s, auto e) { return sum(s, 100, DSGD_INT32, DSGD_SUM, e); }, "int32"},
        Mismatch{"reduction", [](auto s, auto e) { return sum(s, 100, DSGD_FLOAT32, DSGD_SUM, e); },
                 [](auto s, auto e) { return sum(s, 100, DSGD_FLOAT32, DSGD_MAX, e); }, "max"},
        Mismatch{"operation", [](auto s, auto e) { return sum(s, 100, DSGD_FLOAT32, DSGD_SUM, e); },
                 [](auto s, auto e) { return dsgd_barrier(s, nullptr, nullptr, nullptr, e); }, "barrier"},
        Mismatch{"root",
                 [](auto s, auto e) {
                   float x = 0;
                   return dsgd_broadcast(s, nullptr, &x, 4, DSGD_FLOAT32, 0, nullptr, nullptr, e);
                 },
                 [](auto s, auto e) {
                   float x = 0;
                   return dsgd_broadcast(s, nullptr, &x, 4, DSGD_FLOAT32, 1, nullptr, nullptr, e);
                 },
                 "root 1"},
        Mismatch{"size_of_broadcast",
                 [](auto s, auto e) {
                   float x[2] = {};
                   return dsgd_broadcast(s, nullptr, x, 4, DSGD_FLOAT32, 0, nullptr, nullptr, e);
                 },
                 [](auto s, auto e) {
                   float x[2] = {};
                   return dsgd_broadcast(s, nullptr, x, 8, DSGD_FLOAT32, 0, nullptr, nullptr, e);
                 },
                 "root 0, 2 elements"},
        Mismatch{"parts_without_elements", [](auto s, auto e) { return gather(s, {7, 0, 0}, e); },
                 [](auto s, auto e) { return gather(s, {0, 0, 7}, e); }, "counts [0, 0, 7]"},
        Mismatch{"counts",
                 [](auto s, auto e) {
                   std::vector<float> data(600), part(200);
                   const size_t counts[] = {200, 200, 200};
                   return dsgd_reduce_scatter(s, nullptr, data.data(), 2400, part.data(), 800, counts,
                                              DSGD_FLOAT32, DSGD_SUM, nullptr, nullptr, e);
                 },
                 [](auto s, auto e) {
                   std::vector<float> data(600), part(600);
                   size_t counts[] = {100, 300, 200};
                   return dsgd_reduce_scatter(s, nullptr, data.data(), 2400, part.data(),
                                              counts[dsgd_rank(s)] * 4, counts, DSGD_FLOAT32, DSGD_SUM,
                                              nullptr, nullptr, e);
                 },
                 "counts [100, 300, 200]"}),
    [](const auto& info) { return info.param.name; });

// Also where a worker waits for a neighbour, who waits for another.
TEST(Timeout, NamesWhoHasNotCalledWhateverTheAlgorithm) {
  for (const char* algorithm : {"auto", "direct", "ring", "my_ring", "my_tree"}) {
    std::atomic<int> told{0};
    run_job(
        5, {{"algorithm", algorithm}, {"step_timeout", "1s"}, {"lease", "30s"}},
        [&](dsgd_session* session, int rank) {
          std::vector<float> data(100'000, 1);
          if (rank == 2) {
            while (told < 4) std::this_thread::yield();
            return;
          }
          Error error;
          EXPECT_EQ(dsgd_allreduce(session, nullptr, data.data(), data.data(), 400'000, DSGD_FLOAT32,
                                   DSGD_SUM, nullptr, nullptr, error),
                    DSGD_ERR_TIMEOUT);
          EXPECT_EQ(error.rank(), 2) << algorithm << " rank " << rank << ": " << error.message();
          EXPECT_NE(error.message().find("still waiting for rank 2 ("), std::string::npos) << error.message();
          EXPECT_EQ(error.message().find("), rank "), std::string::npos) << error.message();
          ++told;
        },
        register_all);
  }
}

}  // namespace
}  // namespace dsgd_test::collectives_test

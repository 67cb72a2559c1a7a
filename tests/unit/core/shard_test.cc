#include "core/data/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

namespace dsgd {
namespace {

std::vector<int64_t> read_all(Shard& shard, size_t at_a_time) {
  std::vector<int64_t> all, part(at_a_time);
  while (const size_t count = shard.next(part.data(), at_a_time))
    all.insert(all.end(), part.begin(), part.begin() + static_cast<long>(count));
  return all;
}

std::vector<uint64_t> permutation(uint64_t samples, uint64_t seed, uint64_t epoch) {
  std::vector<uint64_t> order(samples);
  for (uint64_t p = 0; p < samples; ++p) order[p] = permuted_index(p, samples, seed, epoch);
  return order;
}

TEST(Shard, every_index_comes_exactly_once_per_epoch_for_any_number_of_workers) {
  for (const uint64_t samples : {0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 100, 1000, 1437, 4097}) {
    for (const uint32_t workers : {1, 2, 3, 4, 5, 7, 64, 1500}) {
      for (const bool shuffle : {true, false}) {
        std::vector<int> seen(samples);
        size_t total = 0;
        for (uint32_t rank = 0; rank < workers; ++rank) {
          Shard shard(samples, 42, shuffle, rank, workers);
          const std::vector<int64_t> indices = read_all(shard, 1 + rank % 9);
          EXPECT_EQ(indices.size(), shard.size());
          EXPECT_LE(shard.size(), samples / workers + 1);
          EXPECT_GE(shard.size(), samples / workers);
          total += indices.size();
          for (const int64_t index : indices) {
            ASSERT_GE(index, 0);
            ASSERT_LT(static_cast<uint64_t>(index), samples);
            ++seen[static_cast<size_t>(index)];
          }
        }
        EXPECT_EQ(total, samples);
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<long>(samples))
            << samples << " samples, " << workers << " workers";
      }
    }
  }
}

TEST(Shard, worker_r_of_w_takes_every_wth_position_from_the_rth_on) {
  const std::vector<uint64_t> order = permutation(103, 5, 2);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    Shard shard(103, 5, true, rank, 4);
    shard.seek(2, 0);
    const std::vector<int64_t> indices = read_all(shard, 10);
    for (size_t i = 0; i < indices.size(); ++i)
      EXPECT_EQ(static_cast<uint64_t>(indices[i]), order[rank + 4 * i]);
  }
}

TEST(Shard, sequential_shards_keep_the_order) {
  Shard shard(10, 9, false, 1, 3);
  EXPECT_EQ(read_all(shard, 2), (std::vector<int64_t>{1, 4, 7}));
}

TEST(Shard, next_gives_nothing_after_the_end_until_an_epoch_is_set) {
  Shard shard(5, 1, true, 0, 2);
  int64_t indices[8];
  EXPECT_EQ(shard.next(indices, 0), 0u);
  EXPECT_EQ(shard.next(indices, 8), 3u);
  EXPECT_EQ(shard.next(indices, 8), 0u);
  shard.seek(0, 0);
  int64_t again[8];
  EXPECT_EQ(shard.next(again, 8), 3u);
  EXPECT_TRUE(std::equal(indices, indices + 3, again));
}

TEST(Shard, more_workers_than_samples_leave_some_without) {
  Shard shard(3, 1, true, 5, 8);
  int64_t index;
  EXPECT_EQ(shard.size(), 0u);
  EXPECT_EQ(shard.next(&index, 1), 0u);
}

TEST(Shard, the_largest_data_sets_do_not_overflow) {
  const uint64_t samples = INT64_MAX;
  Shard shard(samples, 3, true, 65535, 65536);
  EXPECT_EQ(shard.size(), samples / 65536);
  int64_t indices[4];
  ASSERT_EQ(shard.next(indices, 4), 4u);
  for (const int64_t index : indices) EXPECT_GE(index, 0);
  Shard last(UINT64_MAX, 3, false, 0, UINT32_MAX);
  EXPECT_EQ(last.size(), UINT64_MAX / UINT32_MAX);
  // The two ends of a large permutation differ and lie within.
  EXPECT_LT(permuted_index(samples - 1, samples, 3, 0), samples);
  EXPECT_NE(permuted_index(samples - 1, samples, 3, 0), permuted_index(0, samples, 3, 0));
}

// The permutation never changes: jobs of mixed versions and resumed jobs rely on it.
TEST(Shard, golden_permutations) {
  EXPECT_EQ(permutation(10, 0, 0), (std::vector<uint64_t>{5, 3, 4, 7, 0, 8, 2, 1, 9, 6}));
  EXPECT_EQ(permutation(10, 0, 1), (std::vector<uint64_t>{7, 9, 4, 5, 2, 6, 8, 3, 1, 0}));
  EXPECT_EQ(permutation(10, 1, 0), (std::vector<uint64_t>{2, 0, 9, 6, 5, 1, 3, 4, 7, 8}));
  EXPECT_EQ(permutation(5, 1234567890123, 7), (std::vector<uint64_t>{4, 0, 1, 2, 3}));
  EXPECT_EQ(permutation(2, 1, 0), (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(permuted_index(0, 1437, 1, 0), 1213u);
  EXPECT_EQ(permuted_index(1436, 1437, 1, 0), 759u);
  EXPECT_EQ(permuted_index(123456789, uint64_t{1} << 40, 5, 3), 428974012511u);
  EXPECT_EQ(permuted_index(0, INT64_MAX, 77, 1), 1389140480801553138u);
}

// A job of 3 workers stops after 4 batches of 5 in the middle of an epoch; 2 workers read the rest.
TEST(Shard, a_job_of_another_size_reads_the_rest) {
  for (const uint64_t samples : {0, 1, 59, 60, 61, 62, 63, 64, 100}) {
    for (const bool shuffle : {false, true}) {
      std::multiset<int64_t> read;
      uint64_t position = 0;
      for (uint32_t rank = 0; rank < 3; ++rank) {
        Shard shard(samples, 9, shuffle, rank, 3);
        shard.seek(2, 0);
        std::vector<int64_t> batch(5);
        for (int b = 0; b < 4; ++b) {
          const size_t n = shard.next(batch.data(), batch.size());
          read.insert(batch.begin(), batch.begin() + static_cast<ptrdiff_t>(n));
        }
        if (rank > 0) {
          EXPECT_EQ(shard.position(), position) << samples << " samples";
        }
        position = shard.position();
      }
      EXPECT_EQ(position, std::min<uint64_t>(samples, 60));
      for (uint32_t rank = 0; rank < 2; ++rank) {
        Shard shard(samples, 9, shuffle, rank, 2);
        shard.seek(2, position);
        int64_t index;
        while (shard.next(&index, 1) == 1) read.insert(index);
        EXPECT_EQ(shard.position(), samples);
      }
      EXPECT_EQ(read.size(), samples);
      EXPECT_EQ(std::set<int64_t>(read.begin(), read.end()).size(), samples);
    }
  }
}

TEST(Shard, epochs_and_seeds_give_different_orders) {
  std::set<std::vector<uint64_t>> orders;
  for (uint64_t seed = 0; seed < 10; ++seed)
    for (uint64_t epoch = 0; epoch < 10; ++epoch) orders.insert(permutation(100, seed, epoch));
  EXPECT_EQ(orders.size(), 100u);
}

// Chi-square with fixed seeds: how often each index comes at each position. The statistic of a uniform
// permutation has a mean of (n-1)^2 and a standard deviation of about sqrt(2)*(n-1); the bound is five of
// them. Deterministic.
TEST(Shard, indices_are_spread_evenly_over_positions) {
  for (const uint64_t samples : {2, 3, 4, 5, 8, 13, 32}) {
    const uint64_t trials = 20000;
    std::vector<uint32_t> counts(samples * samples);
    for (uint64_t trial = 0; trial < trials; ++trial)
      for (uint64_t p = 0; p < samples; ++p)
        ++counts[p * samples + permuted_index(p, samples, trial / 10, trial % 10)];
    const double expected = static_cast<double>(trials) / static_cast<double>(samples);
    double statistic = 0;
    for (const uint32_t count : counts) statistic += (count - expected) * (count - expected) / expected;
    const double freedom = static_cast<double>((samples - 1) * (samples - 1));
    EXPECT_NEAR(statistic, freedom, 5 * std::sqrt(2 * freedom)) << samples << " samples";
  }
}

// Neighbours in the order are not neighbours in the data set more often than chance has it.
TEST(Shard, consecutive_samples_are_not_related) {
  const uint64_t samples = 1000;
  int close = 0;
  for (uint64_t epoch = 0; epoch < 100; ++epoch) {
    const std::vector<uint64_t> order = permutation(samples, 3, epoch);
    for (size_t i = 1; i < samples; ++i)
      close += std::max(order[i], order[i - 1]) - std::min(order[i], order[i - 1]) == 1;
  }
  // 2 (n-1)/n per permutation are expected, 100 times; the count is nearly Poisson.
  EXPECT_NEAR(close, 200, 5 * std::sqrt(200.0));
}

}  // namespace
}  // namespace dsgd

// Plans and the placement of ranges, without any worker.

#include "core/strategy/plan.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/config/config.h"
#include "core/strategy/hash_ring.h"

namespace dsgd {
namespace {

std::vector<int32_t> servers(int count) {
  std::vector<int32_t> all;
  for (int s = 0; s < count; ++s) all.push_back(s);
  return all;
}

TEST(HashRing, WhenAServerJoinsOrLeavesAboutOneInKMovesAndNoOthers) {
  constexpr int kKeys = 20000;
  for (int k : {2, 3, 5, 8, 16}) {
    const HashRing before(servers(k - 1)), after(servers(k));  // read backwards, server k-1 leaves
    int moved = 0;
    for (int key = 0; key < kKeys; ++key) {
      const uint64_t hash = range_key(static_cast<uint32_t>(key % 97), static_cast<uint64_t>(key / 97));
      if (before.owner(hash) == after.owner(hash)) continue;
      ++moved;
      ASSERT_EQ(after.owner(hash), k - 1) << "a key moved between servers that were there before";
    }
    EXPECT_NEAR(moved, kKeys / k, 0.25 * kKeys / k) << k;
  }
}

// Of r copies of each key, r/k move when one of k servers joins or leaves: the joining server takes over its
// share of each place, and the first copy becomes the owner when the owner leaves.
TEST(HashRing, WhenAServerJoinsOrLeavesOnlyItsCopiesMove) {
  constexpr int kKeys = 20000;
  for (int k : {3, 5, 8, 16}) {
    for (size_t copies : {size_t{2}, size_t{3}}) {
      if (copies >= static_cast<size_t>(k)) continue;
      const HashRing without(servers(k - 1)), with(servers(k));
      int moved = 0;
      for (int key = 0; key < kKeys; ++key) {
        const uint64_t hash = range_key(static_cast<uint32_t>(key % 97), static_cast<uint64_t>(key / 97));
        const auto before = without.servers_of(hash, copies);
        auto after = with.servers_of(hash, copies);
        ASSERT_EQ(before.size(), copies);
        ASSERT_EQ(std::set<int32_t>(after.begin(), after.end()).size(), copies) << "copies are on one server";
        ASSERT_EQ(after.front(), with.owner(hash));
        if (before == after) continue;
        ++moved;
        ASSERT_EQ(std::erase(after, k - 1), 1) << "a copy moved between servers that were there before";
        ASSERT_TRUE(std::equal(after.begin(), after.end(), before.begin()));
      }
      const double expected = static_cast<double>(copies) * kKeys / k;
      EXPECT_NEAR(moved, expected, 0.25 * expected) << k;
    }
  }
  EXPECT_EQ(HashRing(servers(2)).servers_of(range_key(0, 0), 3).size(), 2u) << "there are no more";
}

TEST(HashRing, SpreadsKeysOverServers) {
  for (int k : {2, 4, 16}) {
    const HashRing ring(servers(k));
    std::map<int32_t, int> share;
    for (uint32_t key = 0; key < 20000; ++key) ++share[ring.owner(range_key(key, key % 7))];
    for (int s = 0; s < k; ++s) EXPECT_NEAR(share[s], 20000 / k, 0.3 * 20000 / k) << s << " of " << k;
  }
}

struct PlanCase {
  const char* name;
  std::vector<PlanParameter> parameters;
};

std::vector<PlanCase> cases() {
  const DType f = DType::kFloat32, d = DType::kFloat64;
  std::vector<PlanParameter> many;
  for (size_t i = 0; i < 161; ++i) many.push_back({i % 5 ? f : d, (i * i * 131) % 200000, i % 7 != 3});
  return {{"none", {}},
          {"empty", {{f, 0, true}}},
          {"frozen", {{f, 100, false}}},
          {"one", {{f, 1, true}}},
          {"large", {{f, 10'000'000, true}}},
          {"mixed", {{f, 70000, true}, {d, 5, true}, {f, 0, true}, {f, 4096, true}, {d, 100000, false}}},
          {"many", many}};
}

std::vector<Bucket> buckets(const std::vector<PlanParameter>& parameters, const StrategySpec& strategy,
                            const PlanOptions& options) {
  return make_plan(parameters, strategy, options).value().buckets;
}

TEST(Plan, EveryElementHasOnePlaceAndOneOwner) {
  for (const PlanCase& c : cases()) {
    for (const char* name : {"simple", "ps", "allreduce"}) {
      for (int workers : {1, 2, 3, 7}) {
        for (size_t bytes : {size_t{64} << 10, size_t{4} << 20}) {
          const StrategySpec spec = Strategies().parse(name, "", "auto").value();
          const int servers = bytes < (1 << 20) ? workers : (workers + 1) / 2;
          const auto plan = buckets(c.parameters, spec, {workers, servers, bytes});
          std::vector<size_t> covered(c.parameters.size(), 0);
          for (const Bucket& bucket : plan) {
            SCOPED_TRACE(std::string(c.name) + ' ' + name + " W" + std::to_string(workers));
            size_t elements = 0, last = 0;
            std::set<size_t> trailers;
            ASSERT_EQ(bucket.bounds.size(), static_cast<size_t>(workers) + 1);
            ASSERT_EQ(bucket.bounds.front(), 0u);
            ASSERT_EQ(bucket.bounds.back(), bucket.elements);
            for (const Piece& piece : bucket.pieces) {
              const PlanParameter& parameter = c.parameters[piece.parameter];
              ASSERT_TRUE(parameter.planned);
              ASSERT_EQ(parameter.dtype, bucket.dtype);
              ASSERT_LE(piece.begin + piece.count, parameter.count);
              ASSERT_GE(piece.position, last) << "pieces overlap";
              last = piece.position + piece.count;
              ASSERT_LE(last, bucket.elements);
              ASSERT_TRUE(trailers.insert(piece.trailer).second);
              ASSERT_LT(piece.trailer, piece.position) << "a trailer comes first";
              if (spec.traits().owner_updates()) {
                ASSERT_LT(piece.owner, servers);
              }
              if (spec.traits().owner_transforms()) {
                for (size_t at : {piece.trailer, piece.position, last - 1}) {
                  ASSERT_GE(at, bucket.bounds[static_cast<size_t>(piece.owner)]);
                  ASSERT_LT(at, bucket.bounds[static_cast<size_t>(piece.owner) + 1]);
                }
              }
              covered[piece.parameter] += piece.count;
              elements += piece.count;
            }
            ASSERT_LE(elements * dtype_size(bucket.dtype), bytes) << "a bucket is over its limit";
          }
          for (size_t p = 0; p < covered.size(); ++p) {
            ASSERT_EQ(covered[p], c.parameters[p].planned ? c.parameters[p].count : 0) << c.name << " p" << p;
          }
        }
      }
    }
  }
}

// A trailer that a slice or a chunk cuts would be read before it is whole.
TEST(Plan, TrailersOfAnyLengthLieApartAndAreNotCut) {
  const std::vector<PlanParameter> parameters(100, {DType::kFloat32, 1, true});
  for (const char* name : {"simple", "ps", "allreduce"}) {
    for (const size_t trailer : {kTrailer, kExactTrailer}) {
      PlanOptions options{3, 3};
      options.trailer = trailer;
      for (const Bucket& bucket :
           buckets(parameters, Strategies().parse(name, "", "auto").value(), options)) {
        std::set<size_t> taken;
        for (const Piece& piece : bucket.pieces) {
          EXPECT_EQ(piece.trailer / 16, (piece.trailer + trailer - 1) / 16) << name;
          for (size_t i = 0; i < trailer; ++i) EXPECT_TRUE(taken.insert(piece.trailer + i).second) << name;
          EXPECT_TRUE(taken.insert(piece.position).second) << name;
        }
      }
    }
  }
}

TEST(Plan, PsOwnersDoNotDependOnBuckets) {
  const std::vector<PlanParameter> parameters = {{DType::kFloat32, 1'000'000, true},
                                                 {DType::kFloat32, 300'000, true}};
  const StrategySpec ps = Strategies().parse("ps", "", "auto").value();
  std::map<std::pair<uint32_t, size_t>, int32_t> owners;
  for (size_t bytes : {size_t{256} << 10, size_t{1} << 20, size_t{4} << 20}) {
    for (const Bucket& bucket : buckets(parameters, ps, {4, 4, bytes})) {
      for (const Piece& piece : bucket.pieces) {
        const auto [it, fresh] = owners.try_emplace({piece.parameter, piece.begin}, piece.owner);
        EXPECT_EQ(it->second, piece.owner);
      }
    }
  }
}

TEST(Plan, CopiesOfARangeLieOnOtherServersAndItsMeansTravelToEach) {
  for (const PlanCase& c : cases()) {
    for (const int copies : {2, 3}) {
      const StrategySpec ps = Strategies().parse("ps", "copies=" + std::to_string(copies), "auto").value();
      EXPECT_EQ(ps.describe(), "ps copies=" + std::to_string(copies));
      for (const Bucket& bucket : buckets(c.parameters, ps, {5, 4, 64 << 10})) {
        std::map<int32_t, std::map<size_t, CopiedRange>> sent;  // by keeper, by their ends
        for (const CopiedRange& range : bucket.copied)
          ASSERT_TRUE(sent[range.keeper].try_emplace(range.end, range).second) << "is sent twice";
        for (const auto& [keeper, ranges] : sent) {
          size_t end = 0;
          for (const auto& [range_end, range] : ranges) {
            ASSERT_GE(range.begin, end) << "is sent twice";
            end = range_end;
          }
        }
        for (const Piece& piece : bucket.pieces) {
          ASSERT_EQ(piece.copies.size(), static_cast<size_t>(copies - 1));
          std::set<int32_t> keepers(piece.copies.begin(), piece.copies.end());
          keepers.insert(piece.owner);
          ASSERT_EQ(keepers.size(), static_cast<size_t>(copies));
          EXPECT_LT(*keepers.rbegin(), 4) << "no server";
          for (int32_t keeper : piece.copies) {
            const auto found = sent[keeper].lower_bound(piece.position + piece.count);
            ASSERT_NE(found, sent[keeper].end());
            EXPECT_LE(found->second.begin, piece.position);
            EXPECT_EQ(found->second.owner, piece.owner);
          }
        }
      }
    }
  }
}

// Ranks change with the view, and numbers of workers do not.
TEST(Plan, APsRangeStaysWithItsWorkerWhenRanksChange) {
  const std::vector<PlanParameter> parameters = {{DType::kFloat32, 10'000'000, true}};
  const StrategySpec ps = Strategies().parse("ps", "copies=2", "auto").value();
  const auto owners = [&](std::vector<int32_t> numbers) {
    PlanOptions options{static_cast<int32_t>(numbers.size()), 8};
    options.numbers = numbers;
    std::map<size_t, std::vector<int32_t>> workers;
    for (const Bucket& bucket : buckets(parameters, ps, options)) {
      for (const Piece& piece : bucket.pieces)
        workers[piece.begin] = {numbers[static_cast<size_t>(piece.owner)],
                                numbers[static_cast<size_t>(piece.copies[0])]};
    }
    return workers;
  };
  const auto before = owners({0, 1, 2, 3}), after = owners({0, 2, 3});
  for (const auto& [begin, workers] : before) {
    const std::vector<int32_t>& now = after.at(begin);
    if (workers[0] == 1) {
      EXPECT_EQ(now[0], workers[1]) << "the copy becomes the owner";
    } else {
      EXPECT_EQ(now[0], workers[0]);
      if (workers[1] != 1) {
        EXPECT_EQ(now[1], workers[1]);
      }
    }
  }
}

// The configuration documents the names that the tables have.
TEST(Strategy, TheConfigurationHasTheNamesOfTheTables) {
  for (const std::string& name : Strategies::built_in())
    EXPECT_TRUE(Config().set("strategy", name).ok()) << name;
  for (const std::string& name : Strategies::built_in_algorithms())
    EXPECT_TRUE(Config().set("algorithm", name).ok()) << name;
}

TEST(Strategy, NamesAliasesAndOptionsAreChecked) {
  EXPECT_EQ(Strategies().parse("mirrored", "", "ring").value().describe(), "allreduce algorithm=ring");
  EXPECT_EQ(Strategies().parse("multi_worker_mirrored", "algorithm=direct", "ring").value().describe(),
            "allreduce algorithm=direct");
  const auto wrong = Strategies().parse("allreduse", "", "auto");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("did you mean 'allreduce'"), std::string::npos)
      << wrong.status().message();
  EXPECT_FALSE(Strategies().parse("allreduce", "algorithm=tree", "auto").ok());
  EXPECT_FALSE(Strategies().parse("ps", "algorithm=ring", "auto").ok());
}

}  // namespace
}  // namespace dsgd

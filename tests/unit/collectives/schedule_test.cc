// Schedules: right ones are taken for every number of workers, wrong ones are refused with what is wrong in
// them, and whatever order transfers happen to end in, carrying one out comes to its end and to the sum.
#include "core/collectives/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "core/collectives/halving_doubling.h"
#include "core/collectives/ring.h"
#include "tests/unit/collectives/algorithms.h"

namespace dsgd {
namespace {

using dsgd_test::kCopy;
using dsgd_test::kSend;
using testing::HasSubstr;

using Transfers = std::vector<Transfer>;
using Spoil = std::function<void(int32_t rank, Transfers&)>;

template <typename Algorithm>
ScheduleAlgorithm::Write writer(Algorithm algorithm) {
  return [algorithm](int32_t rank, int32_t size, uint64_t count, Transfers* transfers) {
    algorithm(rank, size, count,
              [&](int32_t kind, int32_t round, int32_t peer, uint64_t begin, uint64_t length) {
                transfers->push_back({static_cast<TransferKind>(kind), round, peer, begin, length});
              });
    return Status();
  };
}

struct Named {
  const char* name;
  ScheduleAlgorithm::Write write;
};
std::vector<Named> right_ones() {
  const auto ring = [](int32_t r, int32_t s, uint64_t c, auto add) {
    dsgd_test::ring_schedule(r, s, c, add);
  };
  const auto doubling = [](int32_t r, int32_t s, uint64_t c, auto add) {
    dsgd_test::doubling_schedule(r, s, c, add);
  };
  const auto tree = [](int32_t r, int32_t s, uint64_t c, auto add) {
    dsgd_test::tree_schedule(r, s, c, add);
  };
  return {{"ring", writer(ring)}, {"doubling", writer(doubling)}, {"tree", writer(tree)}};
}

struct Generated {
  const char* name;
  Generator generate;
};
constexpr Generated kGenerated[] = {{"ring", generate_ring}, {"halving_doubling", generate_halving_doubling}};

// Carries the schedules of all ranks out as a worker does, in an order of events drawn from a seed. Each pair
// has a window: a number of chunks (here: transfers) that may have been sent and not yet been used. Elements
// hold sums of powers of two that are far apart, so that a contribution that is missing or there twice shows.
class Execution {
 public:
  Execution(const ScheduleAlgorithm::Write& write, int32_t size, uint64_t count, uint64_t seed)
      : Execution([&](int32_t rank) { return ScheduleAlgorithm("own", write).schedule(rank, size, count); },
                  size, count, seed) {}
  using Part = std::function<Result<std::shared_ptr<const Schedule>>(int32_t rank)>;
  Execution(const Part& part, int32_t size, uint64_t count, uint64_t seed) : random_(seed) {
    for (int32_t rank = 0; rank < size; ++rank) {
      schedules_.push_back(part(rank).value());  // each worker has its own
      data_.emplace_back(count);
      for (uint64_t i = 0; i < count; ++i) data_.back()[i] = element(rank, i);
      waits_.emplace_back();
      for (size_t e = 0; e < schedules_.back()->entries.size(); ++e) {
        waits_.back().push_back(schedules_.back()->entries[e].waits_for);
        if (waits_.back().back() == 0) ready_.push_back({rank, e});
      }
      left_ += waits_.back().size();
    }
  }
  static double element(int32_t rank, uint64_t i) {
    return static_cast<double>(uint64_t{1} << (6 * rank)) * (i % 3 + 1);
  }

  bool run() {
    while (left_ > 0) {
      std::vector<std::function<void()>> events;
      for (size_t k = 0; k < ready_.size(); ++k) events.push_back([this, k] { begin(k); });
      for (auto& [wire, chunks] : wires_) {
        if (!chunks.empty() && begun_.count({wire.second, chunks.front().receive})) {
          events.push_back([this, wire = wire] { arrive(wire); });
        }
      }
      if (events.empty()) return false;  // all wait for each other
      events[random_() % events.size()]();
    }
    return true;
  }
  const std::vector<std::vector<double>>& data() const { return data_; }

 private:
  using Wire = std::pair<int32_t, int32_t>;
  struct Chunk {
    size_t send, receive;      // entries
    std::vector<double> copy;  // empty: read when it arrives
  };
  const Schedule::Entry& entry(int32_t rank, size_t e) const { return schedules_[rank]->entries[e]; }
  void release(int32_t rank, const std::vector<uint32_t>& entries) {
    for (uint32_t e : entries) {
      if (--waits_[rank][e] == 0) ready_.push_back({rank, e});
    }
  }
  size_t receive_of(Wire wire, uint32_t number) const {
    const auto& entries = schedules_[wire.second]->entries;
    for (size_t e = 0; e < entries.size(); ++e) {
      const Transfer& t = entries[e].transfer;
      if (t.kind != TransferKind::kSend && t.peer == wire.first && entries[e].number == number) return e;
    }
    ADD_FAILURE() << "nobody receives it";
    return 0;
  }
  void begin(size_t k) {
    const auto [rank, e] = ready_[k];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(k));
    const Schedule::Entry& begun = entry(rank, e);
    if (begun.transfer.kind != TransferKind::kSend) {
      begun_.insert({rank, e});
      return;
    }
    const Wire wire{rank, begun.transfer.peer};
    Chunk chunk{e, receive_of(wire, begun.number), {}};
    if (begun.copied) {
      const auto first = data_[rank].begin() + static_cast<std::ptrdiff_t>(begun.transfer.begin);
      chunk.copy.assign(first, first + static_cast<std::ptrdiff_t>(begun.transfer.count));
      release(rank, begun.dependents);
    }
    wires_[wire].push_back(std::move(chunk));
    release(rank, begun.later_sends);
  }
  void arrive(Wire wire) {
    const Chunk chunk = std::move(wires_[wire].front());
    wires_[wire].pop_front();  // in order: what is behind it has no place in the window until it is used
    const Schedule::Entry &out = entry(wire.first, chunk.send), &in = entry(wire.second, chunk.receive);
    for (uint64_t i = 0; i < in.transfer.count; ++i) {
      const double value = chunk.copy.empty() ? data_[wire.first][out.transfer.begin + i] : chunk.copy[i];
      double& place = data_[wire.second][in.transfer.begin + i];
      place = in.transfer.kind == TransferKind::kReduce ? place + value : value;
    }
    left_ -= 2;
    if (!out.copied) release(wire.first, out.dependents);
    release(wire.second, in.dependents);
  }

  std::mt19937_64 random_;
  std::vector<std::shared_ptr<const Schedule>> schedules_;
  std::vector<std::vector<double>> data_;
  std::vector<std::vector<uint32_t>> waits_;
  std::vector<std::pair<int32_t, size_t>> ready_;
  std::set<std::pair<int32_t, size_t>> begun_;
  std::map<Wire, std::deque<Chunk>> wires_;
  size_t left_ = 0;
};

void expect_sums(Execution execution, int32_t size, uint64_t count) {
  ASSERT_TRUE(execution.run()) << "all wait for each other";
  for (int32_t rank = 0; rank < size; ++rank) {
    for (uint64_t i = 0; i < count; ++i) {
      double sum = 0;
      for (int32_t r = 0; r < size; ++r) sum += Execution::element(r, i);
      ASSERT_EQ(execution.data()[rank][i], sum) << "rank " << rank << " element " << i;
    }
  }
}

TEST(Schedule, RightOnesAreTakenAndComeToTheSumInWhateverOrderThingsHappen) {
  for (const Named& named : right_ones()) {
    for (int32_t size = 2; size <= 8; ++size) {
      for (uint64_t count : {uint64_t{1}, uint64_t{2}, uint64_t{7}, uint64_t{100}}) {
        SCOPED_TRACE(std::string(named.name) + " W" + std::to_string(size) + " n" + std::to_string(count));
        for (int32_t rank = 0; rank < size; ++rank) {
          ScheduleAlgorithm own(named.name, named.write);
          auto schedule = own.schedule(rank, size, count);
          ASSERT_TRUE(schedule.ok()) << schedule.status().message();
        }
        for (uint64_t seed = 0; seed < 20; ++seed) {
          SCOPED_TRACE("seed " + std::to_string(seed));
          expect_sums(Execution(named.write, size, count, seed), size, count);
        }
      }
    }
  }
}

TEST(Schedule, GeneratedOnesPassTheCheckOfRegisteredOnes) {
  for (const Generated& generated : kGenerated) {
    for (int32_t size : {2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33, 64, 100}) {
      for (uint64_t count : {uint64_t{1}, uint64_t{15}, uint64_t{1000}, uint64_t{20000}}) {
        SCOPED_TRACE(std::string(generated.name) + " W" + std::to_string(size) + " n" +
                     std::to_string(count));
        const auto write = [&](int32_t rank, int32_t workers, uint64_t elements, Transfers* transfers) {
          generated.generate(rank, workers, elements, 400, transfers);
          for (const Transfer& transfer : *transfers) EXPECT_LE(transfer.count, 400u);
          return Status();
        };
        auto schedule = ScheduleAlgorithm(generated.name, write).schedule(size / 2, size, count);
        ASSERT_TRUE(schedule.ok()) << schedule.status().message();
      }
    }
  }
}

// Their receives do not wait for earlier sends of the same elements. A send is read when it arrives, so one
// that was overwritten before would show in the sums.
TEST(Schedule, GeneratedOnesComeToTheSumInWhateverOrderThingsHappen) {
  for (const Generated& generated : kGenerated) {
    for (int32_t size = 2; size <= 8; ++size) {
      for (uint64_t count : {uint64_t{1}, uint64_t{40}, uint64_t{100}}) {
        for (uint64_t seed = 0; seed < 20; ++seed) {
          SCOPED_TRACE(std::string(generated.name) + " W" + std::to_string(size) + " n" +
                       std::to_string(count) + " seed " + std::to_string(seed));
          const auto part = [&](int32_t rank) {
            return ScheduleAlgorithm(generated.generate).schedule(rank, size, count, 5);
          };
          expect_sums(Execution(part, size, count, seed), size, count);
        }
      }
    }
  }
}

TEST(Schedule, ManyWorkersAreCheckedToo) {
  for (const Named& named : right_ones()) {
    for (int32_t size : {64, 65, 130}) {
      ScheduleAlgorithm algorithm(named.name, named.write);
      auto schedule = algorithm.schedule(size / 2, size, 1000);
      EXPECT_TRUE(schedule.ok()) << named.name << ": " << schedule.status().message();
    }
  }
}

TEST(Schedule, TheDigestIsOfAllRanksParts) {
  std::set<uint64_t> digests;
  for (const Named& named : right_ones()) {
    for (int32_t size : {2, 3, 4}) {
      for (uint64_t count : {uint64_t{64}, uint64_t{65}}) {
        uint64_t first = 0;
        for (int32_t rank = 0; rank < size; ++rank) {
          ScheduleAlgorithm algorithm(named.name, named.write);
          const uint64_t digest = algorithm.schedule(rank, size, count).value()->digest;
          if (rank == 0) first = digest;
          EXPECT_EQ(digest, first) << "the same for all ranks";
        }
        EXPECT_TRUE(digests.insert(first).second) << named.name << size << count;
      }
    }
  }
}

TEST(Schedule, ASendWhoseElementsAreOverwrittenInItsRoundIsCopied) {
  ScheduleAlgorithm doubling("doubling", right_ones()[1].write);
  for (const auto& entry : doubling.schedule(0, 2, 10).value()->entries) {
    EXPECT_EQ(entry.copied, entry.transfer.kind == TransferKind::kSend);
  }
  ScheduleAlgorithm ring("ring", right_ones()[0].write);
  for (const auto& entry : ring.schedule(0, 4, 10).value()->entries) EXPECT_FALSE(entry.copied);
}

// A window holds what is sent first: were that something that is needed last, everybody would wait for each
// other. Here rank 0 could send the second half to rank 1 long before the whole, whose place it is to be
// written to.
TEST(Schedule, SendsToOnePeerBeginInTheirOrder) {
  const auto write = writer([](int32_t rank, int32_t size, uint64_t count, auto add) {
    dsgd_test::ring_schedule(rank, size, count, add);
    const int32_t next = 2 * (size - 1);
    if (rank == 2) add(kSend, next, 0, uint64_t{0}, count / 2);
    if (rank == 0) {
      add(kCopy, next, 2, uint64_t{0}, count / 2);
      add(kSend, next + 1, 1, uint64_t{0}, count);
      add(kSend, next + 2, 1, count / 2, count / 2);
    }
    if (rank == 1) {
      add(kCopy, next + 1, 0, uint64_t{0}, count);
      add(kCopy, next + 2, 0, count / 2, count / 2);
    }
  });
  for (uint64_t seed = 0; seed < 100; ++seed)
    ASSERT_TRUE(Execution(write, 3, 12, seed).run()) << "seed " << seed;
}

struct Wrong {
  const char* name;
  Spoil spoil;
  const char* says;
};

// Each of them spoils the ring of 3 workers and 9 elements: slices of 3 elements, rounds 0 to 3.
TEST(Schedule, WrongOnesAreRefusedAndSayWhatIsWrong) {
  const std::vector<Wrong> cases = {
      {"nothing", [](int32_t, Transfers& t) { t.clear(); },
       "rank 0 ends without rank 1's contribution to elements 0 to 9"},
      {"a peer too high",
       [](int32_t r, Transfers& t) {
         if (r == 1) t[0].peer = 3;
       },
       "rank 1 sends elements 3 to 6 to rank 3 in round 0; peers are the other ranks of 0 .. 2"},
      {"a negative peer",
       [](int32_t r, Transfers& t) {
         if (r == 1) t[1].peer = -1;
       },
       "from rank -1"},
      {"oneself",
       [](int32_t r, Transfers& t) {
         if (r == 1) t[0].peer = 1;
       },
       "to rank 1 in round 0; peers are the other"},
      {"a negative round", [](int32_t, Transfers& t) { t[0].round = -1; }, "rounds are numbered from 0"},
      {"no elements", [](int32_t, Transfers& t) { t[0].count = 0; }, "leave empty transfers out"},
      {"elements behind the end", [](int32_t, Transfers& t) { t[0].begin = 7; },
       "; the operation has 9 elements"},
      {"elements far behind the end", [](int32_t, Transfers& t) { t[0].begin = UINT64_MAX - 1; },
       "; the operation has 9 elements"},
      {"a count that overflows", [](int32_t, Transfers& t) { t[0].count = UINT64_MAX; },
       "; the operation has 9 elements"},
      {"a receive left out",
       [](int32_t r, Transfers& t) {
         if (r == 1) t.erase(t.begin() + 1);
       },
       "rank 0 sends elements 0 to 3 to rank 1 in round 0, but rank 1 receives elements 6 to 9 from rank 0 "
       "in round 1"},
      {"the last receive left out",
       [](int32_t r, Transfers& t) {
         if (r == 1) t.pop_back();
       },
       "rank 0 sends elements 0 to 3 to rank 1 in round 3, which does not receive it"},
      {"the last send left out",
       [](int32_t r, Transfers& t) {
         if (r == 0) t.erase(t.end() - 2);
       },
       "rank 1 receives elements 0 to 3 from rank 0 in round 3, which does not send it"},
      {"another round",
       [](int32_t r, Transfers& t) {
         if (r == 1) t.back().round = 4;
       },
       "in round 3, but rank 1 receives"},
      {"fewer elements",
       [](int32_t r, Transfers& t) {
         if (r == 1) t.back().count = 2;
       },
       "but rank 1 receives elements 0 to 2"},
      {"twice the same",
       [](int32_t, Transfers& t) {
         for (Transfer& x : t)
           if (x.kind == TransferKind::kCopy) x.kind = TransferKind::kReduce;
       },
       "which hold contributions that it has already"},
      {"copied, not added",
       [](int32_t, Transfers& t) {
         for (Transfer& x : t)
           if (x.kind == TransferKind::kReduce) x.kind = TransferKind::kCopy;
       },
       "ends without rank"},
      {"without the last rounds", [](int32_t, Transfers& t) { t.resize(4); }, "ends without rank"},
      {"too many", [](int32_t, Transfers& t) { t.resize(65536, t[0]); },
       "has 65536 transfers, at most 65535"},
  };
  for (const Wrong& wrong : cases) {
    ScheduleAlgorithm algorithm("mine",
                                [&](int32_t rank, int32_t size, uint64_t count, Transfers* transfers) {
                                  Status status = right_ones()[0].write(rank, size, count, transfers);
                                  wrong.spoil(rank, *transfers);
                                  return status;
                                });
    auto schedule = algorithm.schedule(0, 3, 9);
    ASSERT_FALSE(schedule.ok()) << wrong.name;
    EXPECT_EQ(schedule.status().code(), Code::kInvalidArgument) << wrong.name;
    EXPECT_THAT(schedule.status().message(), HasSubstr(wrong.says)) << wrong.name;
    EXPECT_THAT(schedule.status().message(),
                HasSubstr("algorithm 'mine' is wrong for 3 workers and 9 elements"))
        << wrong.name;
  }
}

// All have all, and yet not the same bits: (a + b) + c is not a + (b + c).
TEST(Schedule, OneThatAddsInDifferentOrdersIsRefused) {
  ScheduleAlgorithm algorithm(
      "everybody", [](int32_t rank, int32_t size, uint64_t count, Transfers* transfers) {
        for (int32_t hop = 1; hop < size; ++hop) {
          transfers->push_back({TransferKind::kSend, 0, (rank + hop) % size, 0, count});
        }
        for (int32_t hop = 1; hop < size; ++hop) {
          transfers->push_back({TransferKind::kReduce, 0, (rank + hop) % size, 0, count});
        }
        return Status();
      });
  EXPECT_TRUE(algorithm.schedule(0, 2, 5).ok());  // a + b = b + a
  auto schedule = algorithm.schedule(0, 3, 5);
  ASSERT_FALSE(schedule.ok());
  EXPECT_THAT(schedule.status().message(),
              HasSubstr("in another order than rank 0, so their bits would differ"));
}

TEST(Schedule, OneThatIsTooLongToBeCheckedIsRefusedInsteadOfTakingForEver) {
  ScheduleAlgorithm algorithm("crumbs", [](int32_t rank, int32_t, uint64_t, Transfers* transfers) {
    for (uint64_t i = 0; i < 20000; ++i) transfers->push_back({TransferKind::kSend, 0, 1 - rank, i, 20000});
    for (uint64_t i = 0; i < 20000; ++i) transfers->push_back({TransferKind::kReduce, 0, 1 - rank, i, 20000});
    return Status();
  });
  auto schedule = algorithm.schedule(0, 2, 40000);
  ASSERT_FALSE(schedule.ok());
  EXPECT_THAT(schedule.status().message(), HasSubstr("too many transfers to be checked"));
}

TEST(Schedule, WhatTheAlgorithmAnswersIsPassedOn) {
  ScheduleAlgorithm algorithm("picky", [](int32_t, int32_t size, uint64_t, Transfers*) {
    return Status(Code::kUnsupported, "no schedule for " + std::to_string(size));
  });
  EXPECT_EQ(algorithm.schedule(0, 3, 9).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace dsgd

// Random jobs draw samples from data shards, make steps, lose workers and get new ones. An oracle that knows
// nothing of ledgers notes which samples each step has used, and counts them.
#include "core/data/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/data/shard_list.h"

namespace dsgd {
namespace {

std::vector<uint64_t> positions_of(const SampleLedger& ledger, uint64_t worker) {
  Shard shard(ledger.samples, 0, false, 0, 1);
  shard.take(ledger, worker);
  std::vector<uint64_t> positions;
  int64_t index;
  while (shard.next(&index, 1) == 1) positions.push_back(static_cast<uint64_t>(index));
  return positions;
}

TEST(Ledger, DealsWhatALostWorkerHasNotUsed) {
  SampleLedger ledger = even_ledger(12, 0, {7, 8, 9});
  // 7 has drawn 0 and 3, 8 has drawn 1; 9 has drawn 2 and 5 and is lost, and no step has used 5.
  deal(&ledger, {{7, 1, 2, true}, {8, 1, 1, true}, {9, 1, 1, false}});
  EXPECT_TRUE(is_sound(ledger));
  EXPECT_EQ(dealt_samples(ledger), 8u);
  std::set<uint64_t> all;
  for (const uint64_t worker : {7, 8}) {
    const auto positions = positions_of(ledger, worker);
    EXPECT_EQ(positions.size(), 4u);
    all.insert(positions.begin(), positions.end());
  }
  EXPECT_EQ(all, (std::set<uint64_t>{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(find_part(ledger, 9), nullptr);
  // 7 is lost before its draw of 3 is used.
  deal(&ledger, {{8, 1, 1, true}, {7, 1, 1, false}});
  const auto positions = positions_of(ledger, 8);
  EXPECT_EQ(std::set<uint64_t>(positions.begin(), positions.end()),
            (std::set<uint64_t>{3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST(Ledger, EqualDrawsLeaveOneTail) {
  SampleLedger ledger = even_ledger(1000, 10, {1, 2, 3});
  deal(&ledger, {{1, 7, 7, true}, {2, 7, 7, true}, {3, 7, 7, false}});
  EXPECT_EQ(ledger.tail, 31u);
  ASSERT_EQ(ledger.parts.size(), 2u);
  EXPECT_TRUE(ledger.parts[0].runs.empty() && ledger.parts[1].runs.empty());
}

TEST(Ledger, DoesNotGrowWithChangesThatFollowEachOther) {
  SampleLedger ledger = even_ledger(100'000, 0, {1, 2, 3, 4, 5});
  std::vector<WorkerShare> shares = {
      {1, 5, 9, true}, {2, 7, 7, true}, {3, 0, 100, true}, {4, 3, 3, true}, {5, 11, 12, true}};
  size_t runs = 0;
  for (int change = 0; change < 100; ++change) {
    deal(&ledger, shares);
    size_t now = 0;
    for (const auto& part : ledger.parts) now += part.runs.size();
    if (change > 0) {
      EXPECT_LE(now, runs);
    }
    runs = now;
  }
}

TEST(Ledger, AnInconsistentOneIsRejected) {
  const SampleLedger right = even_ledger(10, 2, {1, 2});
  EXPECT_TRUE(is_sound(right));
  const auto unsound = [&](auto change) {
    SampleLedger wrong = right;
    change(wrong);
    EXPECT_FALSE(is_sound(wrong));
  };
  unsound([](SampleLedger& wrong) { wrong.tail = 11; });
  unsound([](SampleLedger& wrong) { wrong.slots = 1; });
  unsound([](SampleLedger& wrong) { wrong.parts[0].taken = 5; });
  unsound([](SampleLedger& wrong) { wrong.parts[0].held = 1; });
  unsound([](SampleLedger& wrong) { wrong.parts[0].runs = {{0, 0, 1}}; });
  unsound([](SampleLedger& wrong) { wrong.parts[0].runs = {{0, 1, 11}}; });
  unsound([](SampleLedger& wrong) { wrong.parts[0].runs = {{1, UINT64_MAX, 2}}; });
  unsound([](SampleLedger& wrong) { wrong.parts[0].runs = {{0, 1, 3}}; });  // more than there are
}

// As the engine does in a new view.
void deal_all(const std::vector<ShardList*>& lists, uint64_t view, const std::vector<uint64_t>& workers,
              bool over) {
  std::vector<SampleReport> reports;
  for (uint32_t rank = 0; rank < lists.size(); ++rank) lists[rank]->enter({view, false, rank, workers});
  for (const ShardList* list : lists) reports.push_back(list->report(false));
  for (ShardList* list : lists) {
    EXPECT_TRUE(list->deal(reports, std::vector<uint64_t>(lists.size(), 1), over));
    list->resume();
  }
}

// A shard of the only worker, number 7, whose first step has used all samples.
std::shared_ptr<SharedShard> after_an_epoch(ShardList* list, size_t samples) {
  list->enter({1, false, 0, {7}});
  auto shard = list->add(samples, 0, false);
  std::vector<int64_t> indices(samples);
  EXPECT_EQ(shard->next(indices.data(), samples), samples);
  list->begin_step();
  list->commit({{0, list->drawn_for_step()}});
  return shard;
}

TEST(ShardList, AWorkerThatJoinsAtTheEndOfAnEpochIsInTheNextOne) {
  ShardList first, second;
  const auto mine = after_an_epoch(&first, 10);
  int64_t indices[10];
  second.enter({1, true, 1, {7, 8}});
  EXPECT_TRUE(second.waits_for_others());
  deal_all({&first, &second}, 2, {7, 8}, true);
  EXPECT_FALSE(second.waits_for_others());
  const auto theirs = second.add(10, 0, false);
  const auto epoch = [](const Shard& shard) { return shard.epoch(); };
  EXPECT_EQ(theirs->read(epoch), 1u);
  // The hosts use epoch 0 again, so the second worker's host corrects its shard.
  EXPECT_TRUE(mine->seek(0, 0));
  EXPECT_TRUE(theirs->seek(0, 0));
  EXPECT_EQ(first.drawn().shards[0].pass, second.drawn().shards[0].pass);
  EXPECT_EQ(mine->next(indices, 3), 3u);
  EXPECT_EQ(theirs->next(indices, 10), 5u);
  deal_all({&first}, 3, {7}, false);  // no step has used what the second one has drawn
  EXPECT_EQ(mine->next(indices, 10), 7u);
}

TEST(ShardList, AWorkerThatJoinsInTheStepThatHasDrawnAnEpochIsInThisEpoch) {
  ShardList first, second;
  const auto mine = after_an_epoch(&first, 2);
  int64_t indices[2];
  EXPECT_TRUE(mine->seek(1, 0));
  EXPECT_EQ(mine->next(indices, 2), 2u);  // for the step in flight
  second.enter({1, true, 1, {7, 8}});
  const auto theirs = second.add(2, 0, false);
  deal_all({&first, &second}, 2, {7, 8}, true);
  EXPECT_EQ(theirs->read([](const Shard& shard) { return shard.epoch(); }), 1u);
  EXPECT_EQ(theirs->next(indices, 2), 0u);
  EXPECT_TRUE(mine->seek(2, 0));
  EXPECT_TRUE(theirs->seek(2, 0));
  EXPECT_EQ(mine->next(indices, 2), 1u);
  EXPECT_EQ(theirs->next(indices, 2), 1u);
}

TEST(ShardList, AWorkerWaitsWhileSamplesAreDealt) {
  ShardList list;
  list.enter({1, false, 0, {7, 8}});
  const auto shard = list.add(10, 0, false);
  list.enter({2, false, 0, {7}});
  int64_t index;
  EXPECT_FALSE(shard->next(&index, 1).has_value());
  EXPECT_FALSE(shard->seek(1, 0));
  EXPECT_FALSE(list.add(20, 0, false)->ready());
  EXPECT_EQ(shard->next(&index, 1, true), 1u) << "the session is gone";
  list.resume();
  EXPECT_EQ(shard->next(&index, 1), 1u);
}

TEST(ShardList, NoWaitBeginsAfterTheSessionHasFailed) {
  ShardList list;
  list.enter({1, false, 0, {7, 8}});
  const auto shard = list.add(10, 0, false);
  list.end_waits();
  list.enter({2, false, 0, {7}});
  EXPECT_TRUE(shard->ready());
  EXPECT_TRUE(list.add(20, 0, false)->ready());
}

TEST(ShardList, ALedgerThatIsTooLongForAReportLeavesTheSplit) {
  ShardList list;
  list.enter({1, false, 0, {7, 8}});
  const auto shard = list.add(10, 0, false);
  list.enter({2, false, 0, {7}});
  SampleReport report = list.report(false);
  report.ledgers.clear();
  EXPECT_FALSE(list.deal({report}, {1}, false));
  list.resume();
  int64_t indices[10];
  EXPECT_EQ(shard->next(indices, 10), 5u);
}

// ---- random jobs

constexpr uint64_t kSamples[] = {60, 31};  // of the shards

using Item = std::tuple<size_t, uint64_t, int64_t>;  // shard, epoch, index

struct Worker {
  explicit Worker(uint64_t number) : id(number) {}
  const uint64_t id;
  ShardList list;
  std::shared_ptr<SharedShard> shards[2];
  std::vector<Item> drawn, in_step;  // for a later step; for the one in flight
  bool in_flight = false;
  bool looked = false, looked_before_step = false;  // the host has asked every shard for more
  bool outside = false;                             // of the job
  bool learner = false;                             // it has joined, and has not copied the state
  bool new_host = false;                            // it takes the epoch from its shard
  uint64_t steps = 0;
  uint64_t epoch = 0;  // in which its host is, or to which it goes next
};

struct Step {
  std::map<uint64_t, std::vector<Item>> used;  // by worker
  uint64_t view = 0;
  bool all_done = false;
};

class Job {
 public:
  explicit Job(uint64_t seed) : random_(seed) {
    const uint64_t workers = 1 + below(4);
    for (uint64_t i = 0; i < workers; ++i) members_.push_back(add_worker());
    enter(members_);
    for (Worker* worker : members_) worker->list.resume();
  }

  // Until all epochs are over.
  void run(uint64_t epochs) {
    for (int round = 0; round < 2000; ++round) {
      if (std::all_of(members_.begin(), members_.end(), [&](Worker* w) { return w->epoch >= epochs; })) {
        check(epochs);
        return;
      }
      for (Worker* worker : members_) {
        make_shards(*worker, 0.5);
        draw(*worker);
      }
      if (chance(0.08)) change_view();
      make_step();
    }
    ADD_FAILURE() << "the epochs do not end";
  }
  int changes() const { return changes_; }
  int copies() const { return copies_; }

 private:
  uint64_t below(uint64_t limit) { return random_() % limit; }
  bool chance(double probability) { return static_cast<double>(below(1000)) < 1000 * probability; }

  Worker* add_worker() {
    workers_.push_back(std::make_unique<Worker>(1000 + workers_.size()));
    return workers_.back().get();
  }

  void enter(const std::vector<Worker*>& members) {
    ++view_;
    Roster roster{view_, false, 0, {}};
    for (const Worker* worker : members) roster.workers.push_back(worker->id);
    for (Worker* worker : members) {
      if (std::exchange(worker->outside, false)) worker->list.enter({view_, true, 0, {worker->id}});
      worker->list.enter(roster);
      ++roster.rank;
    }
  }

  // In one order on all workers.
  void make_shards(Worker& worker, double late) {
    for (size_t s = 0; s < 2 && !worker.learner; ++s) {
      if (worker.shards[s]) continue;
      if (chance(late)) return;
      worker.shards[s] = worker.list.add(kSamples[s], 5, s == 0);
    }
  }

  // The next epoch begins before the next step.
  void go_to_epoch(Worker& worker) {
    for (const auto& shard : worker.shards) {
      if (!shard || worker.learner) continue;
      const uint64_t epoch = shard->read([](const Shard& of) { return of.epoch(); });
      if (std::exchange(worker.new_host, false)) worker.epoch = epoch;
      if (epoch < worker.epoch) {
        ASSERT_TRUE(shard->seek(worker.epoch, 0));
      }
    }
  }

  void draw(Worker& worker) {
    if (worker.learner) return;
    go_to_epoch(worker);
    bool all = true;
    for (size_t s = 0; s < 2; ++s) {
      SharedShard* shard = worker.shards[s].get();
      all = all && shard;
      if (!shard) continue;
      const auto epoch = [&] { return shard->read([](const Shard& of) { return of.epoch(); }); };
      int64_t indices[8];
      const auto count = shard->next(indices, 1 + below(8));
      ASSERT_TRUE(count.has_value());
      for (size_t i = 0; i < *count; ++i) worker.drawn.emplace_back(s, epoch(), indices[i]);
    }
    worker.looked = worker.looked || all;
  }

  void begin_step(Worker& worker) {
    make_shards(worker, 0);
    go_to_epoch(worker);
    worker.list.begin_step();
    worker.in_step = std::move(worker.drawn);
    worker.drawn.clear();
    worker.in_flight = true;
    worker.looked_before_step = std::exchange(worker.looked, false);
    if (chance(0.2)) draw(worker);  // ahead
  }

  void make_step() {
    if (chance(0.15)) {
      for (Worker* worker : members_) {
        if (!worker->in_flight && chance(0.5)) begin_step(*worker);
      }
      change_view();
    }
    for (;;) {
      for (Worker* worker : members_) {
        if (!worker->in_flight) begin_step(*worker);
      }
      if (chance(0.1)) change_view();  // a worker of it may have completed the step
      if (std::any_of(members_.begin(), members_.end(), [](Worker* w) { return !w->in_flight; })) continue;
      Step step;
      step.view = view_;
      step.all_done = (history_.empty() ? 1 : history_.back().view) == view_;
      std::map<int32_t, DrawnSamples> headers;
      int32_t rank = 0;
      for (Worker* worker : members_) {
        step.used[worker->id] = worker->in_step;
        step.all_done =
            step.all_done && worker->in_step.empty() && worker->drawn.empty() && worker->looked_before_step;
        headers[rank++] = worker->list.drawn_for_step();
      }
      for (auto header = headers.begin(); header != headers.end();)
        header = header->second.made == 0 ? headers.erase(header) : std::next(header);
      history_.push_back(step);
      const bool by_all = chance(0.85);
      bool any = false;
      for (Worker* worker : members_) {
        if (!by_all && chance(0.5)) continue;
        worker->list.commit(headers);
        end_step(*worker);
        any = true;
      }
      if (!any) history_.pop_back();
      if (by_all) return;
      change_view();
    }
  }

  void end_step(Worker& worker) {
    worker.in_step.clear();
    worker.in_flight = false;
    ++worker.steps;
    const Step& step = history_[worker.steps - 1];
    if (step.all_done) ++worker.epoch;
  }

  // Some are lost, some join. It may be interrupted by another change anywhere.
  void change_view() {
    for (;;) {
      ++changes_;
      std::vector<Worker*> left;
      for (Worker* worker : members_) {
        if (!chance(0.3)) left.push_back(worker);
      }
      const bool stands = std::any_of(left.begin(), left.end(), [](Worker* w) { return !w->learner; });
      if (!stands) left = members_;
      if (left.size() < 5 && chance(0.5)) {
        Worker* const joiner = add_worker();
        joiner->learner = joiner->outside = true;
        for (size_t s = 0, made = below(3); s < made; ++s) pending_.push_back({joiner, s});
        left.push_back(joiner);
      }
      members_ = left;
      enter(members_);
      for (const auto& [joiner, s] : pending_) {  // made before the start
        joiner->shards[s] = joiner->list.add(kSamples[s], 5, s == 0);
        EXPECT_FALSE(joiner->shards[s]->ready());
      }
      pending_.clear();
      for (Worker* worker : members_)
        if (chance(0.2)) make_shards(*worker, 0.5);
      for (Worker* worker : members_) {
        for (const auto& shard : worker->shards) {
          int64_t index;
          if (shard) {
            EXPECT_FALSE(shard->next(&index, 1).has_value()) << "drawn while samples are dealt out";
          }
        }
      }
      if (chance(0.1)) continue;
      if (agree()) return;
    }
  }

  bool agree() {
    std::vector<SampleReport> reports;
    std::vector<uint64_t> steps;
    uint64_t most = 0;
    for (Worker* worker : members_) {
      reports.push_back(worker->list.report(worker->in_flight));
      steps.push_back(worker->steps);
      most = std::max(most, worker->steps);
    }
    // No worker that is left has completed more.
    history_.resize(most);
    const bool over = most > 0 && history_.back().all_done;
    std::vector<Worker*> order = members_;
    std::shuffle(order.begin(), order.end(), random_);
    const bool interrupted = chance(0.15);
    for (Worker* worker : order) {
      if (interrupted && chance(0.4)) continue;
      EXPECT_TRUE(worker->list.deal(reports, steps, over));
      worker->list.resume();
      if (!worker->in_flight && chance(0.3)) draw(*worker);
    }
    if (interrupted) return false;
    const bool copies_end = chance(0.8);
    for (Worker* worker : order) {
      if (worker->steps == most) continue;
      if (!copies_end && chance(0.6)) continue;
      worker->list.commit_copied();
      ++copies_;
      if (worker->learner) {
        worker->steps = most;
        worker->new_host = true;
        worker->learner = false;
        continue;
      }
      end_step(*worker);
    }
    return copies_end;
  }

  void check(uint64_t epochs) {
    std::map<Item, int> times;
    for (const Step& step : history_) {
      for (const auto& [worker, items] : step.used)
        for (const Item& item : items) ++times[item];
    }
    for (size_t s = 0; s < 2; ++s) {
      for (uint64_t epoch = 0; epoch < epochs; ++epoch) {
        for (uint64_t index = 0; index < kSamples[s]; ++index) {
          EXPECT_EQ((times[{s, epoch, static_cast<int64_t>(index)}]), 1)
              << "shard " << s << ", epoch " << epoch << ", index " << index;
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Worker>> workers_;  // also lost ones
  std::vector<Worker*> members_;
  std::vector<std::pair<Worker*, size_t>> pending_;
  std::vector<Step> history_;
  uint64_t view_ = 0;
  int changes_ = 0, copies_ = 0;
};

TEST(Ledger, EverySampleIsUsedOncePerEpochDespiteLossesAndJoins) {
  int changes = 0, copies = 0;
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Job job(seed);
    job.run(3);
    changes += job.changes();
    copies += job.copies();
    if (HasFailure()) return;
  }
  EXPECT_GT(changes, 3000);
  EXPECT_GT(copies, 300);
}

}  // namespace
}  // namespace dsgd

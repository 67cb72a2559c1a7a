// Thousands of simulated jobs: random sizes, delays, moments of coming, one random fault, then the end. What
// must hold is written here apart from the code: who is told what, and by when. A failure prints its seed.
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/membership/sim_job.h"

namespace dsgd {
namespace {

using transport::Death;
using transport::Duration;
using transport::SimWorld;
using transport::Time;

constexpr uint64_t kSeeds = 2000;

enum class Fault {
  kNone,     // all leave, at about the same time
  kReset,    // a worker's process is killed
  kSilent,   // its machine dies
  kStop,     // it is stopped for good
  kBreak,    // its connections to the head break
  kReport,   // it reports a cause
  kQuit,     // it leaves because of a cause
  kDestroy,  // its session is freed without leaving
  kCount
};

class RandomJob {
 public:
  static constexpr Duration kLease = 1s, kSlack = 100ms;

  explicit RandomJob(uint64_t seed) : random_(seed), world_(seed, world_options()) {}

  void run() {
    come();
    if (testing::Test::HasFatalFailure()) return;
    world_.run_for(up_to(3 * kLease));
    for (auto& w : workers_) ASSERT_TRUE(w->broken.empty()) << "before the fault: " << w->broken[0].message();
    fault_ = static_cast<Fault>(pick(static_cast<uint64_t>(Fault::kCount)));
    if (fault_ != Fault::kNone) break_something();
    if (testing::Test::HasFatalFailure()) return;
    go();
  }
  uint64_t trace_hash() const { return world_.trace_hash(); }
  std::string describe() const {
    return "size " + std::to_string(size_) + (embedded_ ? ", head in worker 0" : ", separate head") +
           ", fault " + std::to_string(static_cast<int>(fault_)) + " at rank " + std::to_string(victim_);
  }

 private:
  uint64_t pick(uint64_t n) { return random_() % n; }
  Duration up_to(Duration limit) {
    return Duration(static_cast<int64_t>(pick(static_cast<uint64_t>(limit.count()))));
  }

  transport::SimOptions world_options() {
    transport::SimOptions options;
    options.delay.maximum = 50us + up_to(2ms);
    if (pick(2)) options.delay.slow_chance = 0.05;
    options.delay.slow = 1ms + up_to(20ms);
    return options;
  }

  static std::string name(const char* prefix, uint64_t n) {
    std::string text = prefix;
    return text += std::to_string(n);
  }

  // Everybody comes within half a second, the head too; some die on the way and are started again.
  void come() {
    size_ = 1 + static_cast<uint32_t>(pick(5));
    embedded_ = pick(2) == 0;
    by_rank_.resize(size_);
    const auto node0 = world_.start_process("node0");
    world_.run_for(up_to(300ms));
    if (pick(2)) start_head(node0);
    for (uint32_t n = 0; n < size_; ++n) {
      world_.run_for(up_to(100ms));
      SimWorkerOptions options;
      options.id = name("w", n);
      options.num_workers = size_;
      options.lease = kLease;
      options.interval = kLease / 5;
      if (embedded_ && n == 0) {
        start_head(node0);
        options.hosts_head = true;
        workers_.push_back(std::make_unique<SimWorker>(world_, node0, options));
        continue;
      }
      const std::string host = name("node", 1 + n % 3);
      if (pick(4) == 0) {
        SimWorker fleeting(world_, world_.start_process(host), options);
        const bool last = n + 1 == size_ && head_;  // its coming may complete the job
        world_.run_for(last ? Duration(0) : up_to(50ms));
        world_.kill(fleeting.process, Death::kReset);
        world_.run_for(50ms);  // the head sees that
      }
      workers_.push_back(std::make_unique<SimWorker>(world_, world_.start_process(host), options));
    }
    start_head(node0);
    const bool complete = world_.run_until(
        [this] { return all([](SimWorker& w) { return w.joined.has_value(); }); }, world_.now() + 5s);
    ASSERT_TRUE(complete) << "the rendezvous does not end";
    for (auto& w : workers_) {
      ASSERT_TRUE(w->ok()) << w->joined->status().message();
      const transport::JoinReply& reply = w->joined->value();
      EXPECT_EQ(reply.head_rank, embedded_ ? 0 : -1);
      ASSERT_EQ(reply.members.size(), size_);
      ASSERT_GE(reply.rank, 0);
      ASSERT_LT(reply.rank, static_cast<int32_t>(size_));
      EXPECT_EQ(reply.members[static_cast<size_t>(reply.rank)].pid, w->pid);
      EXPECT_EQ(by_rank_[static_cast<size_t>(reply.rank)], nullptr) << "two workers with one rank";
      by_rank_[static_cast<size_t>(reply.rank)] = w.get();
    }
  }

  void start_head(transport::ProcessId process) {
    if (!head_) head_ = std::make_unique<SimHead>(world_, process, "node0", size_, kLease);
  }

  bool all(const std::function<bool(SimWorker&)>& predicate) {
    return std::all_of(workers_.begin(), workers_.end(), [&](const auto& w) { return predicate(*w); });
  }

  void break_something() {
    victim_ = static_cast<int32_t>(pick(size_));
    SimWorker& victim = *by_rank_[static_cast<size_t>(victim_)];
    // There is nothing between them.
    if (victim.process == head_->process && fault_ == Fault::kBreak) fault_ = Fault::kNone;
    const bool hosts_head = victim.process == head_->process;
    Duration promise = kSlack;
    Code code = Code::kWorkerLost;
    switch (fault_) {
      case Fault::kReset:
        world_.kill(victim.process, Death::kReset);
        break;
      case Fault::kSilent:
        world_.kill(victim.process, Death::kSilent);
        promise += kLease;
        break;
      case Fault::kStop:
        world_.pause(victim.process);
        promise += kLease;
        break;
      case Fault::kBreak:
        world_.break_connections(victim.process, head_->process);
        break;
      case Fault::kReport:
        victim.report(Status(Code::kAborted, "enough"));
        code = Code::kAborted;
        break;
      case Fault::kQuit:
        victim.leave(Status(Code::kAborted, "enough"));
        code = Code::kAborted;
        break;
      case Fault::kDestroy:
        victim.destroy();
        break;
      default:
        return;
    }
    const Time start = world_.now();
    world_.run_for(promise + kLease);
    std::string first;
    for (auto& w : workers_) {
      const bool told = w.get() != &victim || fault_ == Fault::kReport || fault_ == Fault::kBreak;
      if (!told) {
        EXPECT_TRUE(w->broken.empty());
        continue;
      }
      ASSERT_EQ(w->broken.size(), 1u) << w->options.id << " was not told";
      EXPECT_LE((w->broken_at - start).count(), promise.count()) << w->options.id << " was told late";
      const Status& status = w->broken[0];
      EXPECT_EQ(status.code(), code) << status.message();
      if (w.get() == &victim && fault_ == Fault::kBreak) continue;  // has lost the head, as it sees it
      EXPECT_EQ(status.rank(), victim_) << status.message();
      EXPECT_EQ(status.host(), victim.host) << status.message();
      if (hosts_head && fault_ != Fault::kReport && fault_ != Fault::kQuit && fault_ != Fault::kDestroy)
        continue;
      if (first.empty()) first = status.message();
      EXPECT_EQ(status.message(), first) << "not all were told the same";
    }
  }

  // Everybody that can leaves within a moment, or (in good order) long after the others. Whoever hosts the
  // head takes it along as soon as it has left.
  void go() {
    Time last = world_.now();
    std::vector<SimWorker*> stragglers;
    for (auto& w : workers_) {
      if (w->calls_of_done || !leaves(*w)) continue;
      if (fault_ == Fault::kNone && w->rank() != 0 && pick(4) == 0) {
        stragglers.push_back(w.get());
        continue;
      }
      world_.run_for(up_to(fault_ == Fault::kNone ? 3ms : 1ms));
      w->leave(w->broken.empty() ? Status() : w->broken[0]);
      last = world_.now();
    }
    const auto gone = [this] {
      return all([this](SimWorker& w) { return !leaves(w) || w.calls_of_done == 1; });
    };
    if (embedded_ && leaves(*by_rank_[0])) {
      ASSERT_TRUE(
          world_.run_until([this] { return by_rank_[0]->calls_of_done == 1; }, last + kLease + kSlack));
      by_rank_[0]->destroy();
      head_.reset();
    }
    if (!stragglers.empty()) {
      world_.run_for(up_to(3 * kLease));
      for (SimWorker* w : stragglers) w->leave();
      last = world_.now();
    }
    ASSERT_TRUE(world_.run_until(gone, last + kLease + kSlack)) << "leaving takes too long";
    if (fault_ != Fault::kNone) return;
    EXPECT_LE((world_.now() - last).count(), Duration(kSlack * 5).count()) << "an orderly end takes too long";
    for (auto& w : workers_) {
      EXPECT_TRUE(w->broken.empty()) << "an orderly end taken for a failure: " << w->broken[0].message();
    }
    if (!head_) return;
    ASSERT_TRUE(world_.run_until([this] { return !head_->ends.empty(); }, world_.now() + kLease + kSlack));
    EXPECT_TRUE(head_->ends[0].ok());
  }
  bool leaves(const SimWorker& w) const {
    return w.rank() != victim_ || fault_ == Fault::kReport || fault_ == Fault::kBreak ||
           fault_ == Fault::kNone;
  }

  std::mt19937_64 random_;
  SimWorld world_;
  uint32_t size_ = 1;
  bool embedded_ = false;
  Fault fault_ = Fault::kNone;
  int32_t victim_ = -1;
  std::unique_ptr<SimHead> head_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::vector<SimWorker*> by_rank_;
};

TEST(MemberRandom, EveryJobKeepsItsPromises) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RandomJob job(seed);
    job.run();
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << ": " << job.describe();
  }
}

TEST(MemberRandom, TheSameSeedGivesTheSameTrace) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    uint64_t hashes[2];
    for (uint64_t& hash : hashes) {
      RandomJob job(seed);
      job.run();
      hash = job.trace_hash();
    }
    EXPECT_EQ(hashes[0], hashes[1]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace dsgd

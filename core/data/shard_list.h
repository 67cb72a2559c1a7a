// The data shards of a session: their positions are part of a checkpoint, and when the workers change, their
// ledgers are dealt out anew.
//
//   enter    the view changes: no worker draws from here on
//   report   what this worker has drawn, and the ledgers that it has
//   deal     chooses the latest ledgers from all reports, and deals the samples that no worker keeps
//
// Shards are numbered in the order of creation, which is the same on all workers. A pass ends when the host
// goes to another position of the data. Workers may be in different passes, since hosts draw ahead. A worker
// that leaves a pass gives up the samples that it has not drawn: they count as drawn, unless the worker is
// lost.
//
// A step's header has the counts of what each worker has drawn. So when a step ends, all know which samples
// it has used, also those of a worker that is lost afterwards. A step that only some workers have completed
// may still be repeated without them, if they are lost in turn. Until all have completed it, ledgers keep
// what it has used.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/data/ledger.h"
#include "core/data/shard.h"

namespace dsgd {

using transport::DrawnSamples;
using transport::SampleReport;

// The workers of a view.
struct Roster {
  uint64_t view = 1;
  bool learner = false;  // this worker is none of them yet: it joins a running job
  uint32_t rank = 0;
  std::vector<uint64_t> workers = {0};  // identities, by rank
  uint64_t own() const { return workers[rank]; }
};

// Any thread, unless stated.
class SharedShard {
 public:
  SharedShard(uint64_t number, const Shard& shard, std::shared_ptr<const Roster> roster, bool ready)
      : ready_(ready), number_(number), shard_(shard), roster_(roster), begun_(std::move(roster)) {}

  // False while samples are dealt out, when the host may not draw; set on the loop.
  const std::atomic<bool>& ready() const { return ready_; }
  // While the shard is not ready, next() returns nothing and seek() returns false, unless `forced`: the
  // session of the shard has ended.
  std::optional<size_t> next(int64_t* indices, size_t max, bool forced = false);
  bool seek(uint64_t epoch, uint64_t position, bool forced = false);
  template <typename Read>
  auto read(Read read) const {
    std::lock_guard lock(mutex_);
    return read(shard_);
  }

 private:
  friend class ShardList;
  SampleLedger ledger() const;
  DrawnSamples::Shard drawn() const;
  void begin_pass(uint64_t pass);
  void go_to(uint64_t pass, uint64_t epoch, uint64_t position);
  void take(const SampleLedger& ledger);

  mutable std::mutex mutex_;  // guards all below; taken after the list's
  std::atomic<bool> ready_;
  uint64_t number_;
  Shard shard_;
  uint64_t pass_ = 0;
  bool used_ = false;                     // the host has drawn in this pass, or a checkpoint was loaded
  bool expected_ = false;                 // this worker has joined, and expects the others to begin the pass
  std::shared_ptr<const Roster> roster_;  // the present one
  std::shared_ptr<const Roster> begun_;   // in which the pass began
  std::optional<SampleLedger> ledger_;    // none: it is even, among the workers of begun_
  std::map<uint64_t, SampleLedger> ahead_;  // of passes that other workers have begun
};

// By number of the shard and pass. The first one of a shard is that of the lowest pass that a worker is in.
using SampleLedgers = std::map<std::pair<uint64_t, uint64_t>, SampleLedger>;

class ShardList {
 public:
  // Returns the shard that another worker has already made for this data. If there is none, makes a new one.
  std::shared_ptr<SharedShard> add(uint64_t samples, uint64_t seed, bool shuffle);
  // Those that the host has not freed, in the order of creation.
  std::vector<std::shared_ptr<SharedShard>> live() const;
  // The samples that this worker has drawn of the shards.
  DrawnSamples drawn() const;
  // The ledgers of the live shards, in the order of creation.
  std::vector<SampleLedger> ledgers() const;
  // The host begins a step, which uses what it has drawn.
  void begin_step();
  DrawnSamples drawn_for_step() const;
  // This worker has joined a running job, and does not know yet which samples are left.
  bool waits_for_others() const;

  // ---- on the loop

  void enter(Roster roster);
  // A step has succeeded. `drawn`: from its headers, by rank.
  void commit(const std::map<int32_t, DrawnSamples>& drawn);
  // The step in flight has succeeded, as the last deal() has found.
  void commit_copied();
  SampleReport report(bool in_step) const;
  // `reports` and the steps that the workers have completed, by rank. Returns false if ledgers were too long
  // for a report: nothing is dealt. `over`: the last step has ended an epoch.
  bool deal(const std::vector<SampleReport>& reports, const std::vector<uint64_t>& steps, bool over);
  void resume();     // ends the wait for a deal
  void end_waits();  // ends the wait, and prevents waits in later views: the session has failed or closes
  // A checkpoint is loaded, alike on all workers. The ledger is dealt among the present ones.
  void restore(const std::shared_ptr<SharedShard>& shard, SampleLedger ledger);
  std::shared_ptr<const Roster> roster() const;

 private:
  using Drawn = std::map<uint64_t, DrawnSamples>;  // by worker
  // `used`: by the completed steps, by worker.
  void take_all(const SampleLedgers& dealt, const Drawn& used, bool over);
  std::shared_ptr<SharedShard> find(uint64_t number, const SampleLedger& like,
                                    std::vector<std::shared_ptr<SharedShard>>* others) const;
  std::shared_ptr<SharedShard> make_unclaimed(uint64_t number, const SampleLedger& like);
  void renumber(const std::vector<std::shared_ptr<SharedShard>>& shards);
  std::vector<std::shared_ptr<SharedShard>> claimed() const;
  std::vector<std::shared_ptr<SharedShard>> all() const;  // also unclaimed ones; by number
  DrawnSamples drawn_of(const std::vector<std::shared_ptr<SharedShard>>& shards) const;

  mutable std::mutex mutex_;
  std::shared_ptr<const Roster> roster_ = std::make_shared<Roster>();
  bool entered_ = false;
  bool waits_ = false;   // for a deal
  bool ended_ = false;   // end_waits() was called
  bool joined_ = false;  // a running job, and no deal yet
  uint64_t made_ = 0;    // by this worker, or known from others
  std::vector<std::weak_ptr<SharedShard>> shards_;
  std::vector<std::shared_ptr<SharedShard>> unclaimed_;  // other workers have made them
  DrawnSamples drawn_for_step_;
  Drawn committed_;                                      // by the last step that this worker has completed
  std::shared_ptr<const Roster> step_roster_ = roster_;  // of that step
  std::vector<uint64_t> lost_with_samples_;              // lost workers that still have a part in a ledger
  Drawn copied_;                                         // becomes committed_ when a copied step is complete
};

}  // namespace dsgd

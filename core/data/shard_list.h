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

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/data/deal_shards.h"
#include "core/data/roster.h"
#include "core/data/shared_shard.h"

namespace dsgd {

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

// A data shard that the host draws from while the loop deals its samples out anew.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "core/data/ledger.h"
#include "core/data/roster.h"
#include "core/data/shard.h"

namespace dsgd {

using transport::DrawnSamples;

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
  // Says in the ledger which data it is of.
  SampleLedger labelled(SampleLedger ledger, uint64_t pass, uint64_t epoch) const;
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

}  // namespace dsgd

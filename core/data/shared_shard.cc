#include "core/data/shared_shard.h"

namespace dsgd {

std::optional<size_t> SharedShard::next(int64_t* indices, size_t max, bool forced) {
  std::lock_guard lock(mutex_);
  if (!ready_ && !forced) return std::nullopt;
  used_ = true;
  return shard_.next(indices, max);
}

bool SharedShard::seek(uint64_t epoch, uint64_t position, bool forced) {
  std::lock_guard lock(mutex_);
  if (!ready_ && !forced) return false;
  // A worker that makes its shard late, or joins late, finds it where the others are, and then goes there.
  const bool elsewhere = shard_.epoch() != epoch || shard_.begin() != position;
  if (used_ || elsewhere) go_to(expected_ && !used_ ? pass_ : pass_ + 1, epoch, position);
  return true;
}

void SharedShard::go_to(uint64_t pass, uint64_t epoch, uint64_t position) {
  begin_pass(pass);
  shard_.seek(epoch, position);
  const auto known = ahead_.find(pass_);
  if (known != ahead_.end() && known->second.epoch == epoch && known->second.begin == position)
    take(known->second);
  ahead_.erase(ahead_.begin(), ahead_.upper_bound(pass_));
}

void SharedShard::begin_pass(uint64_t pass) {
  pass_ = pass;
  used_ = expected_ = false;
  begun_ = roster_;
  ledger_.reset();
}

void SharedShard::take(const SampleLedger& ledger) {
  ledger_ = ledger;
  shard_.take(ledger, roster_->own());
}

SampleLedger SharedShard::labelled(SampleLedger ledger, uint64_t pass, uint64_t epoch) const {
  ledger.number = number_;
  ledger.samples = shard_.samples();
  ledger.seed = shard_.seed();
  ledger.shuffle = shard_.shuffle();
  ledger.pass = pass;
  ledger.epoch = epoch;
  return ledger;
}

SampleLedger SharedShard::ledger() const {
  SampleLedger ledger =
      labelled(ledger_ ? *ledger_ : even_ledger(shard_.samples(), shard_.begin(), begun_->workers), pass_,
               shard_.epoch());
  if (!ledger_) ledger.view = begun_->view;
  return ledger;
}

DrawnSamples::Shard SharedShard::drawn() const {
  std::lock_guard lock(mutex_);
  return {number_, pass_, shard_.epoch(), shard_.begin(), shard_.drawn()};
}

}  // namespace dsgd

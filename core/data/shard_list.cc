#include "core/data/shard_list.h"

#include <algorithm>
#include <utility>

namespace dsgd {

std::shared_ptr<SharedShard> ShardList::add(uint64_t samples, uint64_t seed, bool shuffle) {
  std::lock_guard lock(mutex_);
  std::erase_if(shards_, [](const auto& known) { return known.expired(); });
  const auto like = std::find_if(unclaimed_.begin(), unclaimed_.end(), [&](const auto& shard) {
    return shard->read([&](const Shard& of) { return of.same_data(samples, seed, shuffle); });
  });
  std::shared_ptr<SharedShard> added;
  if (like != unclaimed_.end()) {
    added = *like;
    unclaimed_.erase(like);
  } else {
    const Shard shard(samples, seed, shuffle, roster_->rank, roster_->size());
    added = std::make_shared<SharedShard>(made_++, shard, roster_, !waits_);
  }
  shards_.push_back(added);
  return added;
}

std::vector<std::shared_ptr<SharedShard>> ShardList::live() const {
  std::lock_guard lock(mutex_);
  return claimed();
}

std::vector<std::shared_ptr<SharedShard>> ShardList::claimed() const {
  std::vector<std::shared_ptr<SharedShard>> shards;
  for (const auto& known : shards_)
    if (auto shard = known.lock()) shards.push_back(std::move(shard));
  return shards;
}

std::vector<std::shared_ptr<SharedShard>> ShardList::all() const {
  std::vector<std::shared_ptr<SharedShard>> shards = claimed();
  shards.insert(shards.end(), unclaimed_.begin(), unclaimed_.end());
  std::sort(shards.begin(), shards.end(),
            [](const auto& a, const auto& b) { return a->number_ < b->number_; });
  return shards;
}

DrawnSamples ShardList::drawn_of(const std::vector<std::shared_ptr<SharedShard>>& shards) const {
  DrawnSamples drawn;
  drawn.made = made_;
  for (const auto& shard : shards) drawn.shards.push_back(shard->drawn());
  return drawn;
}

DrawnSamples ShardList::drawn() const {
  std::lock_guard lock(mutex_);
  return drawn_of(all());
}

std::vector<SampleLedger> ShardList::ledgers() const {
  std::vector<SampleLedger> ledgers;
  for (const auto& shard : live()) {
    std::lock_guard lock(shard->mutex_);
    ledgers.push_back(shard->ledger());
  }
  return ledgers;
}

void ShardList::begin_step() {
  std::lock_guard lock(mutex_);
  drawn_for_step_ = drawn_of(all());
}

DrawnSamples ShardList::drawn_for_step() const {
  std::lock_guard lock(mutex_);
  return drawn_for_step_;
}

bool ShardList::waits_for_others() const {
  std::lock_guard lock(mutex_);
  return joined_;
}

std::shared_ptr<const Roster> ShardList::roster() const {
  std::lock_guard lock(mutex_);
  return roster_;
}

void ShardList::enter(Roster roster) {
  std::lock_guard lock(mutex_);
  const bool first = !std::exchange(entered_, true);
  if (first) joined_ = roster.learner;
  waits_ = (!first || joined_) && !ended_;
  roster_ = std::make_shared<const Roster>(std::move(roster));
  if (first) step_roster_ = roster_;
  for (const auto& shard : all()) {
    std::lock_guard of_shard(shard->mutex_);
    shard->ready_ = !waits_;
    shard->roster_ = roster_;
    shard->shard_.set_workers(roster_->rank, roster_->size());
  }
}

void ShardList::commit(const std::map<int32_t, DrawnSamples>& drawn) {
  std::lock_guard lock(mutex_);
  if (drawn.empty()) return;
  for (const auto& [rank, of_worker] : drawn)
    committed_[roster_->workers[static_cast<size_t>(rank)]] = of_worker;
  step_roster_ = roster_;
  copied_.clear();
  // After the deal, the counts of a lost worker are needed only while a ledger still has a part of that
  // worker.
  if (committed_.size() <= roster_->workers.size()) return;
  std::erase_if(committed_, [&](const auto& entry) {
    return !has_worker(roster_->workers, entry.first) && !has_worker(lost_with_samples_, entry.first);
  });
}

void ShardList::commit_copied() {
  std::lock_guard lock(mutex_);
  for (auto& [worker, drawn] : copied_) committed_[worker] = std::move(drawn);
  copied_.clear();
}

SampleReport ShardList::report(bool in_step) const {
  std::lock_guard lock(mutex_);
  SampleReport mine;
  mine.joined = joined_;
  if (joined_) return mine;
  const auto shards = all();
  mine.drawn = drawn_of(shards);
  if (const auto own = committed_.find(roster_->own()); own != committed_.end()) mine.committed = own->second;
  mine.step = in_step ? drawn_for_step_ : mine.committed;
  for (const auto& [worker, drawn] : committed_) {
    if (!has_worker(roster_->workers, worker)) mine.lost.push_back({worker, drawn});
  }
  for (const auto& shard : shards) {
    std::lock_guard of_shard(shard->mutex_);
    mine.ledgers.push_back(shard->ledger());
    for (const auto& [pass, ledger] : shard->ahead_) mine.ledgers.push_back(ledger);
    // A lost worker may have been the only one that had begun a pass.
    for (const auto& lost : mine.lost) {
      const DrawnSamples::Shard* drawn = find_drawn(lost.committed, shard->number_);
      if (!drawn || drawn->pass <= shard->pass_ || shard->ahead_.count(drawn->pass) > 0) continue;
      SampleLedger ledger =
          shard->labelled(even_ledger(shard->shard_.samples(), drawn->begin, step_roster_->workers),
                          drawn->pass, drawn->epoch);
      ledger.view = step_roster_->view;
      mine.ledgers.push_back(std::move(ledger));
    }
  }
  return mine;
}

bool ShardList::deal(const std::vector<SampleReport>& reports, const std::vector<uint64_t>& steps,
                     bool over) {
  std::lock_guard lock(mutex_);
  const bool complete = std::none_of(reports.begin(), reports.end(), [](const SampleReport& report) {
    return report.ledgers.empty() && !report.drawn.shards.empty();
  });
  if (!complete) {
    joined_ = false;
    return false;
  }
  CompletedStep completed = completed_of(reports, steps, roster_->workers);
  const SampleLedgers dealt = deal_all(reports, completed, *roster_);
  made_ = joined_ ? made_by(reports) : made_;
  take_all(dealt, completed.drawn, over);

  lost_with_samples_.clear();
  for (const auto& [key, ledger] : dealt) {
    for (const SampleLedger::Part& part : ledger.parts)
      if (!has_worker(roster_->workers, part.worker)) lost_with_samples_.push_back(part.worker);
  }
  copied_.clear();
  if (steps[roster_->rank] < completed.steps) {
    copied_ = std::move(completed.drawn);
  } else if (joined_) {
    committed_ = std::move(completed.drawn);
  }
  joined_ = false;
  return true;
}

// Finds the shard of a ledger, and takes it out of `others`. A worker that has joined finds its own shards by
// their data, since it does not know their numbers. Null: the host has none.
std::shared_ptr<SharedShard> ShardList::find(uint64_t number, const SampleLedger& like,
                                             std::vector<std::shared_ptr<SharedShard>>* others) const {
  const auto found = std::find_if(others->begin(), others->end(), [&](const auto& other) {
    return (joined_ || other->number_ == number) &&
           other->read([&](const Shard& of) { return of.same_data(like.samples, like.seed, like.shuffle); });
  });
  if (found == others->end()) return nullptr;
  auto shard = *found;
  others->erase(found);
  return shard;
}

std::shared_ptr<SharedShard> ShardList::make_unclaimed(uint64_t number, const SampleLedger& like) {
  const Shard of(like.samples, like.seed, like.shuffle, roster_->rank, roster_->size());
  auto shard = std::make_shared<SharedShard>(number, of, roster_, false);
  unclaimed_.push_back(shard);
  made_ = std::max(made_, number + 1);
  return shard;
}

// Shards that only this worker has, which has joined, begin among all workers.
void ShardList::renumber(const std::vector<std::shared_ptr<SharedShard>>& shards) {
  for (const auto& shard : shards) {
    std::lock_guard of_shard(shard->mutex_);
    shard->number_ = made_++;
    shard->begun_ = roster_;
    shard->shard_.seek(shard->shard_.epoch(), shard->shard_.begin());
  }
}

// Takes this worker's part of each ledger, or keeps it for a pass that the host has not begun.
void ShardList::take_all(const SampleLedgers& dealt, const Drawn& used, bool over) {
  auto others = all();  // that no ledger is for
  for (auto first = dealt.begin(), next = first; first != dealt.end(); first = next) {
    const uint64_t number = first->first.first;
    next = dealt.lower_bound({number + 1, 0});
    const SampleLedger& like = first->second;
    uint64_t pass = first->first.second;  // the lowest that a worker is in
    std::shared_ptr<SharedShard> shard = find(number, like, &others);
    if (!shard && !joined_ && number < made_) continue;  // the host has freed it
    const bool adopted = !shard || joined_;
    if (!shard) shard = make_unclaimed(number, like);
    // If the others have just ended this pass, they begin the next one before this worker's first step. The
    // last step may have ended an earlier pass: then the others have drawn all of this one for the step in
    // flight.
    const bool ended = over && std::any_of(used.begin(), used.end(), [&](const auto& of_worker) {
                         const DrawnSamples::Shard* drawn = find_drawn(of_worker.second, number);
                         return drawn && drawn->pass == pass;
                       });
    const bool expected = joined_ && ended && dealt_samples(like) == 0;
    if (expected) ++pass;
    std::lock_guard of_shard(shard->mutex_);
    shard->number_ = number;
    if (adopted) shard->begin_pass(pass);
    if (expected) shard->shard_.seek(like.epoch + 1, 0);
    shard->expected_ = expected;
    shard->ahead_.clear();
    for (auto at = first; at != next; ++at) {
      const uint64_t of_pass = at->first.second;
      if (of_pass > shard->pass_) shard->ahead_[of_pass] = at->second;
      const SampleLedger::Part* part = find_part(at->second, roster_->own());
      if (of_pass != shard->pass_ || !part || part->slot == SampleLedger::kNoSlot) continue;
      shard->take(at->second);
      shard->expected_ = false;
    }
  }
  if (joined_) renumber(others);
}

void ShardList::resume() {
  std::lock_guard lock(mutex_);
  waits_ = false;
  for (const auto& shard : all()) shard->ready_ = true;
}

// If a session fails while it enters a view, enter() follows. It must not begin another wait.
void ShardList::end_waits() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  resume();
}

void ShardList::restore(const std::shared_ptr<SharedShard>& shard, SampleLedger ledger) {
  std::lock_guard lock(mutex_);
  std::lock_guard of_shard(shard->mutex_);
  shard->begin_pass(0);
  shard->used_ = true;
  shard->ahead_.clear();
  ledger.pass = 0;
  ledger.view = roster_->view;
  ledger.dealt = true;
  shard->take(ledger);
  // No step has used anything of it since.
  for (auto& [worker, drawn] : committed_) {
    std::erase_if(drawn.shards, [&](const auto& other) { return other.number == shard->number_; });
    if (drawn.made > shard->number_)
      drawn.shards.push_back({shard->number_, 0, ledger.epoch, ledger.begin, 0});
  }
}

}  // namespace dsgd

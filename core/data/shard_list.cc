#include "core/data/shard_list.h"

#include <algorithm>
#include <tuple>

namespace dsgd {
namespace {

constexpr uint64_t kAll = UINT64_MAX;

const DrawnSamples::Shard* find_drawn(const DrawnSamples& drawn, uint64_t number) {
  for (const DrawnSamples::Shard& shard : drawn.shards) {
    if (shard.number == number) return &shard;
  }
  return nullptr;
}

// The number of samples that a worker has drawn in the pass of the ledger. It has drawn all of a pass that it
// has left.
uint64_t drawn_in(const DrawnSamples& drawn, const SampleLedger& ledger) {
  const DrawnSamples::Shard* shard = find_drawn(drawn, ledger.number);
  if (!shard) return drawn.made > ledger.number ? kAll : 0;
  if (shard->pass != ledger.pass) return shard->pass > ledger.pass ? kAll : 0;
  return shard->epoch == ledger.epoch && shard->begin == ledger.begin ? shard->count : kAll;
}

// Ledgers that were dealt in one view are equal. An even one that began in a later view is that of a worker
// that did not know of the earlier one; it has not drawn.
bool supersedes(const SampleLedger& a, const SampleLedger& b) {
  if (a.dealt != b.dealt) return a.dealt;
  return a.dealt ? a.view > b.view : a.view < b.view;
}

bool names(const std::vector<uint64_t>& workers, uint64_t worker) {
  return std::find(workers.begin(), workers.end(), worker) != workers.end();
}

// The samples that each worker has drawn for the last step that some worker has completed.
struct Completed {
  uint64_t steps = 0;
  bool by_all = true;
  std::map<uint64_t, DrawnSamples> drawn;  // by worker, also lost ones
};

Completed completed_of(const std::vector<SampleReport>& reports, const std::vector<uint64_t>& steps,
                       const std::vector<uint64_t>& workers) {
  Completed completed;
  for (size_t rank = 0; rank < reports.size(); ++rank)
    if (!reports[rank].joined) completed.steps = std::max(completed.steps, steps[rank]);
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const SampleReport& report = reports[rank];
    if (report.joined) continue;
    const bool has = steps[rank] == completed.steps;
    completed.by_all = completed.by_all && has;
    completed.drawn[workers[rank]] = has ? report.committed : report.step;
    for (size_t i = 0; has && i < report.lost.size(); ++i)
      completed.drawn[report.lost[i].worker] = report.lost[i].committed;
  }
  return completed;
}

uint64_t made_by(const std::vector<SampleReport>& reports) {
  uint64_t made = 0;
  for (const SampleReport& report : reports) made = std::max(made, report.drawn.made);
  return made;
}

SampleLedgers latest_ledgers(const std::vector<SampleReport>& reports) {
  std::map<uint64_t, uint64_t> lowest;
  for (const SampleReport& report : reports) {
    for (const DrawnSamples::Shard& shard : report.drawn.shards) {
      const auto at = lowest.try_emplace(shard.number, shard.pass).first;
      at->second = std::min(at->second, shard.pass);
    }
  }
  SampleLedgers latest;
  for (const SampleReport& report : reports) {
    for (const SampleLedger& ledger : report.ledgers) {
      const auto at = lowest.find(ledger.number);
      if (at == lowest.end() || ledger.pass < at->second || !is_sound(ledger)) continue;
      const auto [known, added] = latest.try_emplace({ledger.number, ledger.pass}, ledger);
      if (!added && supersedes(ledger, known->second)) known->second = ledger;
    }
  }
  return latest;
}

SampleLedgers deal_all(const std::vector<SampleReport>& reports, const Completed& completed,
                       const Roster& roster) {
  const auto used_by = [&](uint64_t worker, const SampleLedger& ledger) {
    const auto drawn = completed.drawn.find(worker);
    return drawn_in(drawn == completed.drawn.end() ? DrawnSamples() : drawn->second, ledger);
  };
  SampleLedgers dealt;
  for (auto& [key, ledger] : latest_ledgers(reports)) {
    std::vector<WorkerShare> shares;
    bool any = false;
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      const uint64_t kept = reports[rank].joined ? 0 : drawn_in(reports[rank].drawn, ledger);
      const uint64_t used = used_by(roster.workers[rank], ledger);
      shares.push_back({roster.workers[rank], completed.by_all ? used : 0, kept, kept != kAll});
      any = any || kept != kAll;
    }
    for (const SampleLedger::Part& part : ledger.parts) {
      if (names(roster.workers, part.worker)) continue;
      const uint64_t used = used_by(part.worker, ledger);
      shares.push_back({part.worker, completed.by_all ? used : 0, used, false});
    }
    if (!any) continue;
    SampleLedger next = ledger;
    deal(&next, shares);
    next.view = roster.view;
    dealt[key] = std::move(next);
  }
  return dealt;
}

}  // namespace

// ---- SharedShard

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

SampleLedger SharedShard::ledger() const {
  SampleLedger ledger = ledger_ ? *ledger_ : even_ledger(shard_.samples(), shard_.begin(), begun_->workers);
  ledger.number = number_;
  ledger.samples = shard_.samples();
  ledger.seed = shard_.seed();
  ledger.shuffle = shard_.shuffle();
  ledger.pass = pass_;
  ledger.epoch = shard_.epoch();
  if (!ledger_) ledger.view = begun_->view;
  return ledger;
}

DrawnSamples::Shard SharedShard::drawn() const {
  std::lock_guard lock(mutex_);
  return {number_, pass_, shard_.epoch(), shard_.begin(), shard_.drawn()};
}

// ---- ShardList

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
    const Shard shard(samples, seed, shuffle, roster_->rank, static_cast<uint32_t>(roster_->workers.size()));
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
    shard->shard_.set_workers(roster_->rank, static_cast<uint32_t>(roster_->workers.size()));
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
    return !names(roster_->workers, entry.first) && !names(lost_with_samples_, entry.first);
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
    if (!names(roster_->workers, worker)) mine.lost.push_back({worker, drawn});
  }
  for (const auto& shard : shards) {
    std::lock_guard of_shard(shard->mutex_);
    mine.ledgers.push_back(shard->ledger());
    for (const auto& [pass, ledger] : shard->ahead_) mine.ledgers.push_back(ledger);
    // A lost worker may have been the only one that had begun a pass.
    for (const auto& lost : mine.lost) {
      const DrawnSamples::Shard* drawn = find_drawn(lost.committed, shard->number_);
      if (!drawn || drawn->pass <= shard->pass_ || shard->ahead_.count(drawn->pass) > 0) continue;
      SampleLedger ledger = even_ledger(shard->shard_.samples(), drawn->begin, step_roster_->workers);
      ledger.number = shard->number_;
      ledger.seed = shard->shard_.seed();
      ledger.shuffle = shard->shard_.shuffle();
      ledger.pass = drawn->pass;
      ledger.epoch = drawn->epoch;
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
  Completed completed = completed_of(reports, steps, roster_->workers);
  const SampleLedgers dealt = deal_all(reports, completed, *roster_);
  made_ = joined_ ? made_by(reports) : made_;
  take_all(dealt, completed.drawn, over);

  lost_with_samples_.clear();
  for (const auto& [key, ledger] : dealt) {
    for (const SampleLedger::Part& part : ledger.parts)
      if (!names(roster_->workers, part.worker)) lost_with_samples_.push_back(part.worker);
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
  const Shard of(like.samples, like.seed, like.shuffle, roster_->rank,
                 static_cast<uint32_t>(roster_->workers.size()));
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

#include "core/data/deal_shards.h"

#include <algorithm>
#include <cstddef>

namespace dsgd {
namespace {

constexpr uint64_t kAll = UINT64_MAX;

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

}  // namespace

const DrawnSamples::Shard* find_drawn(const DrawnSamples& drawn, uint64_t number) {
  for (const DrawnSamples::Shard& shard : drawn.shards) {
    if (shard.number == number) return &shard;
  }
  return nullptr;
}

uint64_t made_by(const std::vector<SampleReport>& reports) {
  uint64_t made = 0;
  for (const SampleReport& report : reports) made = std::max(made, report.drawn.made);
  return made;
}

CompletedStep completed_of(const std::vector<SampleReport>& reports, const std::vector<uint64_t>& steps,
                           const std::vector<uint64_t>& workers) {
  CompletedStep completed;
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

SampleLedgers deal_all(const std::vector<SampleReport>& reports, const CompletedStep& completed,
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
      if (has_worker(roster.workers, part.worker)) continue;
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

}  // namespace dsgd

// How the samples of all data shards are dealt out in a new view: functions of the reports of its workers.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/data/ledger.h"
#include "core/data/roster.h"

namespace dsgd {

using transport::DrawnSamples;
using transport::SampleReport;

// By number of the shard and pass. The first one of a shard is that of the lowest pass that a worker is in.
using SampleLedgers = std::map<std::pair<uint64_t, uint64_t>, SampleLedger>;

// Returns null if `drawn` does not contain the shard.
const DrawnSamples::Shard* find_drawn(const DrawnSamples& drawn, uint64_t number);

// Returns the number of shards that the worker with the most shards has made.
uint64_t made_by(const std::vector<SampleReport>& reports);

// The samples that each worker has drawn for the last step that some worker has completed.
struct CompletedStep {
  uint64_t steps = 0;
  bool by_all = true;
  std::map<uint64_t, DrawnSamples> drawn;  // by worker, also lost ones
};

// `reports`, the steps that the workers have completed, and the identities of the workers, by rank.
CompletedStep completed_of(const std::vector<SampleReport>& reports, const std::vector<uint64_t>& steps,
                           const std::vector<uint64_t>& workers);

// Chooses the latest ledgers from the reports, and deals the samples that no worker keeps.
SampleLedgers deal_all(const std::vector<SampleReport>& reports, const CompletedStep& completed,
                       const Roster& roster);

}  // namespace dsgd

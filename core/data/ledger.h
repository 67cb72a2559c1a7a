// The ledger of one pass over a data set: which worker draws which samples. A pass is the part of an epoch
// from one seek of the host to the next. Pure data and arithmetic; all workers compute the same ledger.
//
// At first worker r of W draws every W-th position from the r-th on: a share of the `tail`. When the workers
// change, deal() collects the samples that no worker has used, and deals them out again. The new tail begins
// at the first position from which on no worker has drawn any. Positions before it that slower workers have
// not drawn are cut into runs. Each part starts with the samples drawn for steps that are not final. If the
// worker is lost, these samples are dealt again. A ledger therefore contains exactly once every sample that
// no final step has used. Its size does not grow with the number of samples.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/payloads.h"

namespace dsgd {

using transport::SampleLedger;
using transport::SampleRun;

SampleLedger even_ledger(uint64_t samples, uint64_t begin, const std::vector<uint64_t>& workers);
// Checks a ledger received from another worker: whether its numbers are consistent.
bool is_sound(const SampleLedger& ledger);

const SampleLedger::Part* find_part(const SampleLedger& ledger, uint64_t worker);
// Samples of the part.
uint64_t size_of(const SampleLedger& ledger, const SampleLedger::Part& part);
// The number of samples that its worker will have drawn at its end.
uint64_t end_of(const SampleLedger& ledger, const SampleLedger::Part& part);
// Number of samples in all parts that no worker had drawn when they were dealt.
uint64_t dealt_samples(const SampleLedger& ledger);

// The rest of a part when its worker has drawn `drawn`.
SampleLedger::Part rest_of(const SampleLedger& ledger, const SampleLedger::Part& part, uint64_t drawn);

// A worker that has a part or will get one.
struct WorkerShare {
  uint64_t worker = 0;
  // The number of samples that it had drawn by the last step that is final.
  uint64_t final_drawn = 0;
  // The number of samples that it keeps: those that it has drawn now or, if it is lost, had drawn by the last
  // step that some worker has completed.
  uint64_t kept_drawn = 0;
  bool deal_in = false;  // gets a part of the rest
};
// Deals out what no worker keeps. `shares` name every worker of the ledger; their order is that of the new
// slots.
void deal(SampleLedger* ledger, const std::vector<WorkerShare>& shares);

}  // namespace dsgd

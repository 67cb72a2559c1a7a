#include "core/data/ledger.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace dsgd {
namespace {

using Part = SampleLedger::Part;

// Samples of the tail that are in this slot.
uint64_t share_of(const SampleLedger& ledger, uint32_t slot) {
  if (slot == SampleLedger::kNoSlot) return 0;
  const uint64_t length = ledger.samples - ledger.tail;
  return length > slot ? (length - slot - 1) / ledger.slots + 1 : 0;
}

uint64_t in_runs(const Part& part) {
  uint64_t count = 0;
  for (const SampleRun& run : part.runs) count += run.count;
  return count;
}

void append(std::vector<SampleRun>* runs, SampleRun run) {
  if (run.count == 0) return;
  if (!runs->empty()) {
    SampleRun& last = runs->back();
    if (last.stride == run.stride && run.first == last.first + last.count * last.stride) {
      last.count += run.count;
      return;
    }
  }
  runs->push_back(run);
}

// Appends the samples [begin, end) of the part, counted from its first one, as far as they are below `limit`.
void append_slice(const SampleLedger& ledger, const Part& part, uint64_t begin, uint64_t end, uint64_t limit,
                  std::vector<SampleRun>* to) {
  uint64_t at = 0;
  const auto clip = [&](const SampleRun& run) {
    const uint64_t from = std::max(begin, at), until = std::min(end, at + run.count);
    if (from < until) append(to, {run.first + (from - at) * run.stride, run.stride, until - from});
    at += run.count;
  };
  for (const SampleRun& run : part.runs) clip(run);
  const uint64_t share = share_of(ledger, part.slot);
  if (share <= part.taken) return;
  SampleRun rest{ledger.tail + part.slot + part.taken * ledger.slots, ledger.slots, share - part.taken};
  if (rest.first >= limit) return;
  rest.count = std::min(rest.count, (limit - rest.first - 1) / rest.stride + 1);
  clip(rest);
}

}  // namespace

SampleLedger even_ledger(uint64_t samples, uint64_t begin, const std::vector<uint64_t>& workers) {
  SampleLedger ledger;
  ledger.samples = samples;
  ledger.begin = ledger.tail = begin;
  for (const uint64_t worker : workers) ledger.parts.push_back({worker, ledger.slots++, 0, 0, 0, {}});
  return ledger;
}

bool is_sound(const SampleLedger& ledger) {
  if (ledger.tail > ledger.samples || ledger.begin > ledger.samples) return false;
  uint64_t total = 0;
  for (const Part& part : ledger.parts) {
    if (part.slot != SampleLedger::kNoSlot && part.slot >= ledger.slots) return false;
    const uint64_t share = share_of(ledger, part.slot);
    if (part.held < part.base || part.taken > share || share - part.taken > ledger.samples - total)
      return false;
    total += share - part.taken;
    for (const SampleRun& run : part.runs) {
      if (run.stride == 0 || run.count == 0 || run.first >= ledger.samples) return false;
      if ((ledger.samples - run.first - 1) / run.stride < run.count - 1) return false;
      if (run.count > ledger.samples - total) return false;
      total += run.count;
    }
    if (part.held - part.base > in_runs(part)) return false;
  }
  return true;
}

const Part* find_part(const SampleLedger& ledger, uint64_t worker) {
  const auto found = std::find_if(ledger.parts.begin(), ledger.parts.end(),
                                  [&](const Part& part) { return part.worker == worker; });
  return found == ledger.parts.end() ? nullptr : &*found;
}

uint64_t size_of(const SampleLedger& ledger, const Part& part) {
  return in_runs(part) + share_of(ledger, part.slot) - part.taken;
}

uint64_t end_of(const SampleLedger& ledger, const Part& part) { return part.base + size_of(ledger, part); }

uint64_t dealt_samples(const SampleLedger& ledger) {
  uint64_t count = 0;
  for (const Part& part : ledger.parts) count += size_of(ledger, part) - (part.held - part.base);
  return count;
}

Part rest_of(const SampleLedger& ledger, const Part& part, uint64_t drawn) {
  const uint64_t runs = in_runs(part), used = std::min(drawn - part.base, size_of(ledger, part));
  Part rest{part.worker, part.slot, part.taken + (used > runs ? used - runs : 0), 0, 0, {}};
  append_slice(ledger, part, used, runs, 0, &rest.runs);
  return rest;
}

void deal(SampleLedger* ledger, const std::vector<WorkerShare>& shares) {
  const SampleLedger before = *ledger;
  // No worker has drawn any sample from here on.
  uint64_t tail = before.tail;
  std::vector<std::pair<uint64_t, uint64_t>> bounds;  // of what stays with the worker, in its part
  for (const WorkerShare& share : shares) {
    const Part* part = find_part(before, share.worker);
    uint64_t final = 0, kept = 0;
    if (part) {
      kept = std::min(std::max(share.kept_drawn, part->base) - part->base, size_of(before, *part));
      final = std::min(std::max(share.final_drawn, part->base) - part->base, kept);
      const uint64_t runs = in_runs(*part), of_tail = part->taken + (kept > runs ? kept - runs : 0);
      if (of_tail > 0) tail = std::max(tail, before.tail + part->slot + (of_tail - 1) * before.slots + 1);
    }
    bounds.emplace_back(final, kept);
  }

  ledger->dealt = true;
  ledger->tail = tail;
  ledger->slots = 0;
  ledger->parts.clear();
  std::vector<SampleRun> rest;
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto& [final, kept] = bounds[i];
    Part after{shares[i].worker, SampleLedger::kNoSlot, 0, 0, 0, {}};
    if (const Part* part = find_part(before, shares[i].worker)) {
      append_slice(before, *part, final, kept, before.samples, &after.runs);
      append_slice(before, *part, kept, UINT64_MAX, tail, &rest);
      after.base = part->base + final;
      after.held = part->base + kept;
    }
    if (shares[i].deal_in) after.slot = ledger->slots++;
    if (shares[i].deal_in || !after.runs.empty()) ledger->parts.push_back(std::move(after));
  }
  // So that runs that an earlier deal has cut are joined again.
  std::sort(rest.begin(), rest.end(), [](const SampleRun& a, const SampleRun& b) {
    return std::tuple(a.stride, a.first % a.stride, a.first) <
           std::tuple(b.stride, b.first % b.stride, b.first);
  });
  std::vector<SampleRun> pool;
  for (const SampleRun& run : rest) append(&pool, run);
  uint64_t left = 0;
  for (const SampleRun& run : pool) left += run.count;
  // The first slots have one sample more of the tail, the last ones one more of the rest.
  size_t at = 0;
  uint64_t used = 0;  // of the run `at`
  for (Part& part : ledger->parts) {
    if (part.slot == SampleLedger::kNoSlot) continue;
    uint64_t wanted = left / ledger->slots + (part.slot >= ledger->slots - left % ledger->slots);
    while (wanted > 0) {
      const SampleRun& run = pool[at];
      const uint64_t count = std::min(wanted, run.count - used);
      append(&part.runs, {run.first + used * run.stride, run.stride, count});
      wanted -= count, used += count;
      if (used == run.count) ++at, used = 0;
    }
  }
}

}  // namespace dsgd

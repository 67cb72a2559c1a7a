#include "core/collectives/scheduled.h"

#include <algorithm>
#include <functional>

#include "core/base/sort_unique.h"
#include "core/collectives/chunks.h"
#include "core/collectives/direct.h"
#include "core/mesh/operations.h"
#include "core/reduce/kernels.h"

namespace dsgd {

using transport::BulkHeader;
using transport::BulkReceipt;

// Of a schedule that sends more than kMaxCopied bytes, only the smallest chunks are copied, since all copies
// may exist at once.
constexpr uint64_t kMaxCopied = 16 << 20;
constexpr size_t kAlwaysCopied = 4096;

Scheduled::Scheduled(Operations& operations, const BulkHeader& shape, ScheduledPlan plan, Done done,
                     std::shared_ptr<const Group> group)
    : Task(operations, shape, std::move(done), std::move(group)),
      plan_(std::move(plan)),
      chunk_(operations.peers().chunk_bytes() / plan_.element),
      copied_bytes_(kAlwaysCopied) {}

uint64_t Scheduled::tag(const Operations& operations, const Schedule& schedule) {
  return schedule.digest ^ operations.peers().chunk_bytes();
}

void Scheduled::start() {
  const auto& entries = plan_.schedule->entries;
  states_.resize(entries.size());
  receives_from_.resize(group_->size());
  left_ = entries.size();
  uint64_t sent = 0;
  for (size_t entry = 0; entry < entries.size(); ++entry) {
    State& state = states_[entry];
    state.waits_for = entries[entry].waits_for;
    state.left = chunks_of(entry);
    if (transfer(entry).kind != TransferKind::kSend) {
      state.have.assign(state.left, 0);
      receives_from_[transfer(entry).peer].push_back(entry);
    } else {
      sent += transfer(entry).count * plan_.element;
    }
    if (state.waits_for == 0) ready_.push_back(entry);
  }
  if (sent <= kMaxCopied) copied_bytes_ = transport::kSmallBytes;
  begin_ready();
}

void Scheduled::release(const std::vector<uint32_t>& entries) {
  for (uint32_t entry : entries) {
    if (--states_[entry].waits_for == 0) ready_.push_back(entry);
  }
}

// A started transfer may end at once and release others, so this uses a list and no recursion.
void Scheduled::begin_ready() {
  if (beginning_) return;
  beginning_ = true;
  while (!ready_.empty()) {
    const size_t entry = ready_.back();
    ready_.pop_back();
    begin(entry);
  }
  beginning_ = false;
  check_end();
}

void Scheduled::begin(size_t entry) {
  const Schedule::Entry& planned = plan_.schedule->entries[entry];
  State& state = states_[entry];
  state.begun = true;
  if (transfer(entry).kind == TransferKind::kSend) {
    if (planned.copied) {
      const std::byte* data = address_of(entry, 0);
      state.copy.assign(data, data + transfer(entry).count * plan_.element);
    }
    send_entry(entry);
    if (planned.copied) release(planned.dependents);
    release(planned.later_sends);
    return;
  }
  auto parked = std::move(state.parked);
  state.parked.clear();
  for (auto& [chunk, receipt] : parked) {
    landing_of(entry, chunk).write(0, receipt->data());
    receipt->finish({});
    received(entry);
  }
}

void Scheduled::send_entry(size_t entry) {
  const Transfer& out = transfer(entry);
  const size_t chunks = chunks_of(entry);
  State& state = states_[entry];
  const auto over = [this, entry] {
    if (--states_[entry].left > 0) return;
    --left_;
    std::vector<std::byte>().swap(states_[entry].copy);
    const Schedule::Entry& planned = plan_.schedule->entries[entry];
    if (!planned.copied) release(planned.dependents);
  };
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    const size_t begin = chunk * chunk_, count = std::min<size_t>(chunk_, out.count - begin);
    BulkHeader header = shape_;
    header.phase = static_cast<uint16_t>(plan_.schedule->entries[entry].number);
    header.offset = (out.begin + begin) * plan_.element;
    const std::byte* base = state.copy.empty() ? plan_.data + out.begin * plan_.element : state.copy.data();
    const std::span<const std::byte> data(base + begin * plan_.element, count * plan_.element);
    if (data.size() <= copied_bytes_) {
      send_small(out.peer, header, data);
      over();
      if (ended()) return;  // the peer is gone
      continue;
    }
    send(out.peer, header, data, [this, over](const Status&) {
      over();
      begin_ready();
    });
  }
}

std::optional<Landing> Scheduled::locate(int32_t source, const BulkHeader& header, size_t nbytes) {
  if (header.phase >= receives_from_[source].size()) return {};
  const size_t entry = receives_from_[source][header.phase], element = plan_.element;
  const Transfer& in = transfer(entry);
  const auto found = chunk_index(in.begin * element, (in.begin + in.count) * element, chunk_ * element,
                                 header.offset, nbytes);
  State& state = states_[entry];
  if (!found || state.have[*found]) return {};
  const size_t chunk = *found;
  if (!state.begun) {
    return Landing{.keep = [this, entry, chunk](std::unique_ptr<BulkReceipt> receipt) {
      states_[entry].have[chunk] = 1;
      states_[entry].parked.emplace_back(chunk, std::move(receipt));
    }};
  }
  state.have[chunk] = 1;
  Landing landing = landing_of(entry, chunk);
  landing.landed = [this, entry] {
    received(entry);
    begin_ready();
  };
  return landing;
}

Landing Scheduled::landing_of(size_t entry, size_t chunk) const {
  const bool reduces = transfer(entry).kind == TransferKind::kReduce;
  return {.destination = address_of(entry, chunk),
          .combine = reduces ? &plan_.add : nullptr,
          .element = plan_.element};
}

void Scheduled::received(size_t entry) {
  if (--states_[entry].left > 0) return;
  --left_;
  release(plan_.schedule->entries[entry].dependents);
}

void Scheduled::check_end() {
  if (!ended() && left_ == 0) end({});
}

void Scheduled::drop_chunks(const Status& cause) {
  for (State& state : states_) {
    for (auto& [chunk, receipt] : state.parked) receipt->finish(cause);
    state.parked.clear();
  }
}

// Names the peers of transfers that have begun. A transfer that has not begun waits for one of those, or for
// this worker.
std::vector<int32_t> Scheduled::missing() const {
  std::vector<int32_t> ranks;
  for (size_t entry = 0; entry < states_.size(); ++entry) {
    if (states_[entry].begun && states_[entry].left > 0) ranks.push_back(transfer(entry).peer);
  }
  sort_unique(ranks);
  return ranks;
}

// A transfer's number among those between two ranks travels in 16 bits (BulkHeader::phase), and a rank sends
// at most twice the data. So this bounds the number of blocks.
constexpr uint64_t kMaxBlocks = 1 << 15;

Result<std::unique_ptr<Task>> make_scheduled_all_reduce(const AllReduceAlgorithm& algorithm,
                                                        AllReduceCall call) {
  if (call.group->size() == 1) return make_direct_all_reduce(algorithm, std::move(call));
  AllReducePlan& plan = call.plan;
  const size_t element = dtype_size(plan.dtype);
  const uint64_t chunk = call.operations.peers().chunk_bytes() / element;
  const uint64_t block = chunk * (1 + 2 * plan.count / (chunk * kMaxBlocks));
  auto schedule = algorithm.schedules->schedule(call.group->own_index, call.group->size(), plan.count,
                                                algorithm.registered() ? 0 : block);
  if (!schedule.ok()) return schedule.status();
  call.shape.algorithm = static_cast<uint8_t>(algorithm.code);
  call.shape.tag = Scheduled::tag(call.operations, *schedule.value());
  // In a registered algorithm one worker may compute a + b where another computes b + a.
  const auto reduce = algorithm.registered() ? reduce_symmetric : reduce_into;
  ScheduledPlan scheduled{schedule.value(), element, plan.data,
                          std::bind_front(reduce, plan.dtype, plan.reduction)};
  return std::unique_ptr<Task>(std::make_unique<Scheduled>(call.operations, call.shape, std::move(scheduled),
                                                           finish_all(plan, std::move(call.done)),
                                                           std::move(call.group)));
}

}  // namespace dsgd

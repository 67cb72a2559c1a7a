// How the mesh compares a call on all workers. Each pair of workers exchanges at least one chunk of a call's
// first operation, an empty one where there is no data to move, and each chunk carries the signature. An
// operation succeeds on a worker only when all peers have shown it the same signature; equality is
// transitive, so no worker succeeds if any two disagree.
//
// Several pairs may find a difference at the same time. So that all workers report the same sentence, each of
// them sends its full signature to rank 0, and rank 0 names the first two that differ.

#include <algorithm>

#include "core/mesh/mesh.h"

namespace dsgd {

using transport::BulkHeader;

void Mesh::note_sent(int32_t rank, uint64_t operation) {
  if (starting_ && !starting_->sent_to.empty() && starting_->task->operation() == operation)
    starting_->sent_to[rank] = 1;
}

bool Mesh::send_signature(Task& task) {
  const uint64_t operation = task.operation();
  BulkHeader header = task.shape();
  header.phase = kSignaturePhase;
  for (int32_t hop = 1; hop < size() && is_first(operation); ++hop) {  // each worker begins with another peer
    const int32_t rank = (view_.rank + hop) % size();
    if (!tasks_[operation].sent_to[rank]) send_small(rank, header, {});
    if (find(operation) != &task) return false;
  }
  return true;
}

void Mesh::has_agreed(uint64_t operation, int32_t rank) {
  const auto entry = tasks_.find(operation);
  if (entry == tasks_.end() || entry->second.agreed.empty() || std::exchange(entry->second.agreed[rank], 1))
    return;
  hear(entry->second, rank);
  if (--entry->second.to_agree == 0 && entry->second.finished) entry->second.task->end({});
}

bool Mesh::finish(Task& task) {
  Entry& entry = tasks_[task.operation()];
  entry.finished = true;
  return entry.to_agree == 0;
}

std::vector<int32_t> Mesh::missing(const Entry& entry) const {
  std::vector<int32_t> ranks = entry.task->missing_ranks();
  for (int32_t rank = 0; rank < size() && entry.to_agree > 0; ++rank) {
    if (rank != view_.rank && !entry.agreed[rank]) ranks.push_back(rank);
  }
  if (!entry.disagreement.ok() && view_.rank != 0) ranks.push_back(0);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Signature Mesh::signature_of(const Task& task) const {
  BulkHeader header = task.shape();
  header.source = view_.rank;
  header.view = view_.view;
  header.phase = kSignaturePhase;
  return {header, chunk_bytes_, task.counts()};
}

Task* Mesh::match(int32_t source, const BulkHeader& header) {
  const auto entry = tasks_.find(header.operation);
  if (entry == tasks_.end() || entry->second.unsound) return nullptr;
  Task* task = entry->second.task.get();
  if (same_operation(header, task->shape()) && task->group().place_of(source) >= 0) return task;
  mismatch(*task, source, header);
  return nullptr;
}

void Mesh::mismatch(Task& task, int32_t source, const BulkHeader& header) {
  Entry& entry = tasks_[task.operation()];
  if (!entry.disagreement.ok()) return;
  entry.disagreement =
      Status(Code::kMismatch, disagreement(view_.rank, signature_of(task), source, {header, 0, {}}))
          .with_rank(std::max(source, view_.rank), host_of(std::max(source, view_.rank)))
          .with_operation(task.name());
  if (!is_first(task.operation()) || left_[0]) return fail(task, Status(entry.disagreement));
  const uint64_t operation = task.operation();
  entry.verdict = loop().schedule(loop().now() + options_.lease, [this, operation] {
    if (find(operation)) tasks_[operation].verdict = 0;
    if (Task* open = find(operation)) fail(*open, Status(tasks_[operation].disagreement));
  });
  if (view_.rank == 0) {
    settle(operation);
    return;
  }
  const Signature mine = signature_of(task);
  send_small(0, mine.header, signature_payload(mine));
}

// Consumes a chunk that carries a full signature or is invalid, and returns null; returns any other chunk.
std::unique_ptr<transport::BulkReceipt> Mesh::take_dispute(int32_t source, const BulkHeader& header,
                                                           std::unique_ptr<transport::BulkReceipt> receipt) {
  const auto data = receipt->data();
  if (data.empty() && header.offset == 0) return receipt;
  Signature theirs;
  if (header.offset != 0 || view_.rank != 0 || !is_first(header.operation) ||
      !read_signature(header, data, view_.members.size(), &theirs)) {
    receipt->finish(Status(Code::kInternal, "unexpected chunk"));
    Task* task = find(header.operation);
    if (task && task->group().place_of(source) >= 0)
      task->protocol_error(task->group().place_of(source), header, data.size());
    return nullptr;
  }
  if (has_ended(header.operation)) {
    receipt->finish(refusal(source, header));
  } else if (const auto early = failed_early_.find(header.operation); early != failed_early_.end()) {
    receipt->finish(early->second);
  } else {
    receipt->finish({});
    disputes_[header.operation][source] = std::move(theirs);
    if (disputes_.size() > kRememberedFailures) disputes_.erase(std::prev(disputes_.end()));
    settle(header.operation);
  }
  return nullptr;
}

// If two of the known signatures differ, sends all workers an error that names the lowest rank and the lowest
// one that differs from it. Returns whether the operation ended.
bool Mesh::settle(uint64_t operation) {
  const auto disputed = disputes_.find(operation);
  if (disputed == disputes_.end()) return false;
  std::map<int32_t, Signature> known = disputed->second;
  if (Task* task = find(operation)) known[view_.rank] = signature_of(*task);
  const auto& [rank, first] = *known.begin();
  const auto other = std::find_if(known.begin(), known.end(), [&, mine = &first](const auto& item) {
    return !same_operation(item.second.header, mine->header);
  });
  if (other == known.end()) return false;
  const Status cause = Status(Code::kMismatch, disagreement(rank, first, other->first, other->second))
                           .with_rank(other->first, host_of(other->first));
  tell_peers(operation, false, cause);
  end_with(operation, cause);
  return true;
}

}  // namespace dsgd

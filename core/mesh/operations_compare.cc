// How a call is compared on all workers. Each pair of workers exchanges at least one chunk of a call's first
// operation, an empty one where there is no data to move, and each chunk carries the signature. An operation
// succeeds on a worker only when all peers have shown it the same signature; equality is transitive, so no
// worker succeeds if any two disagree.
//
// Several pairs may find a difference at the same time. So that all workers report the same sentence, each of
// them sends its full signature to rank 0, and rank 0 names the first two that differ.

#include <algorithm>

#include "core/mesh/operations.h"

namespace dsgd {

using transport::BulkHeader;

bool Operations::send_signature(Operation& operation) {
  const Task& task = *operation.task;
  if (!is_first_of_call(task.operation())) return true;
  BulkHeader header = task.shape();
  header.phase = kSignaturePhase;
  for (int32_t hop = 1; hop < peers_.size(); ++hop) {  // each worker begins with another peer
    const int32_t rank = (peers_.rank() + hop) % peers_.size();
    if (!operation.sent_to[rank]) send_small(rank, header, {});
    if (task.ended()) return false;
  }
  return true;
}

void Operations::has_agreed(Operation& operation, int32_t rank) {
  if (operation.task->ended() || operation.agreed.empty() || std::exchange(operation.agreed[rank], 1)) return;
  note_begun(operation, rank);
  if (--operation.to_agree == 0 && operation.finished) operation.task->end({});
}

bool Operations::finish(Task& task) {
  Operation& operation = table_.at(task.operation());
  operation.finished = true;
  return operation.to_agree == 0;
}

Signature Operations::signature_of(const Task& task) const {
  BulkHeader header = task.shape();
  header.source = peers_.rank();
  header.view = members().view().view;
  header.phase = kSignaturePhase;
  return {header, peers_.chunk_bytes(), task.counts()};
}

Operations::Operation* Operations::match(int32_t source, const BulkHeader& header) {
  Operation* const operation = find_open(header.operation);
  if (!operation) return nullptr;
  const Task& task = *operation->task;
  if (same_operation(header, task.shape()) && task.group().index_of(source) >= 0) return operation;
  mismatch(*operation, source, header);
  return nullptr;
}

void Operations::mismatch(Operation& operation, int32_t source, const BulkHeader& header) {
  if (!operation.disagreement.ok()) return;
  Task& task = *operation.task;
  const int32_t rank = peers_.rank(), higher = std::max(source, rank);
  operation.disagreement =
      Status(Code::kMismatch, disagreement(rank, signature_of(task), source, {header, 0, {}}))
          .with_rank(higher, members().host_of(higher))
          .with_operation(task.name());
  const uint64_t number = task.operation();
  if (!is_first_of_call(number) || peers_.has_left(0)) return fail(task, Status(operation.disagreement));
  operation.mismatch_timer = loop().schedule(loop().now() + peers_.options().lease, [this, number] {
    Operation* const open = find_open(number);
    if (!open) return;
    open->mismatch_timer = 0;
    fail(*open->task, Status(open->disagreement));
  });
  if (rank == 0) {
    report_mismatch(number);
    return;
  }
  const Signature mine = signature_of(task);
  send_small(0, mine.header, signature_payload(mine));
}

// Handles a chunk with a full signature, or an invalid one, and returns null. Returns other chunks unchanged.
std::unique_ptr<transport::BulkReceipt> Operations::take_signature(
    int32_t source, const BulkHeader& header, std::unique_ptr<transport::BulkReceipt> receipt) {
  const auto data = receipt->data();
  if (data.empty() && header.offset == 0) return receipt;
  const uint64_t number = header.operation;
  Signature theirs;
  if (header.offset != 0 || peers_.rank() != 0 || !is_first_of_call(number) ||
      !read_signature(header, data, static_cast<size_t>(peers_.size()), &theirs)) {
    receipt->finish(Status(Code::kInternal, "unexpected chunk"));
    Operation* const open = find_open(number);
    const int32_t index = open ? open->task->group().index_of(source) : -1;
    if (index >= 0) open->task->protocol_error(index, header, data.size());
    return nullptr;
  }
  if (history_.has_ended(number)) {
    receipt->finish(late_chunk_error(source, header));
    return nullptr;
  }
  Operation& operation = table_[number];
  receipt->finish(operation.failed_early);
  if (!operation.failed_early.ok()) return nullptr;
  operation.differing[source] = std::move(theirs);
  forget_excess();
  report_mismatch(number);
  return nullptr;
}

// If two of the known signatures differ, sends all workers an error that names the lowest rank and the lowest
// one that differs from it. Returns whether the operation ended.
bool Operations::report_mismatch(uint64_t number) {
  const auto found = table_.find(number);
  if (found == table_.end() || found->second.differing.empty()) return false;
  std::map<int32_t, Signature> known = found->second.differing;
  if (const auto& task = found->second.task) known[peers_.rank()] = signature_of(*task);
  const auto& [rank, first] = *known.begin();
  const auto other = std::find_if(known.begin(), known.end(), [&, mine = &first](const auto& item) {
    return !same_operation(item.second.header, mine->header);
  });
  if (other == known.end()) return false;
  const Status cause = Status(Code::kMismatch, disagreement(rank, first, other->first, other->second))
                           .with_rank(other->first, members().host_of(other->first));
  peers_.tell_operation_failed(number, cause);
  end_with(number, cause);
  return true;
}

}  // namespace dsgd

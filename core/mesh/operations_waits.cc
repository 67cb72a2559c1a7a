// The peers that operations wait for, and the errors of operations whose deadline has passed.

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/sort_unique.h"
#include "core/base/while_alive.h"
#include "core/mesh/operations.h"

namespace dsgd {

namespace {

// Wait for the answers to "have you begun?". Constant: a call returns within 100 ms after its deadline,
// whatever the lease.
constexpr transport::Duration kAnswerLimit = std::chrono::milliseconds(50);

}  // namespace

void Operations::note_begun(Operation& operation, int32_t rank) {
  if (!std::exchange(operation.peer_has_begun[rank], 1)) end_wait(operation, rank, false);
}

void Operations::end_wait(const Operation& operation, int32_t rank, bool failed) {
  transport::Time begun = operation.begun;
  for (const auto& [number, other] : table_) {
    if (other.task && !other.peer_has_begun[rank]) begun = std::min(begun, other.begun);
  }
  peers_.count_wait(rank, begun, failed);
}

std::vector<int32_t> Operations::missing_ranks(const Operation& operation) const {
  std::vector<int32_t> ranks = operation.task->missing_ranks();
  for (int32_t rank : operation.task->group().ranks) {
    if (operation.to_agree > 0 && rank != peers_.rank() && !operation.agreed[rank]) ranks.push_back(rank);
  }
  if (!operation.disagreement.ok() && peers_.rank() != 0) ranks.push_back(0);
  sort_unique(ranks);
  return ranks;
}

std::vector<int32_t> Operations::missing_ranks() const {
  std::vector<int32_t> ranks;
  for (const auto& [number, operation] : table_) {
    if (!operation.task) continue;
    const std::vector<int32_t> of_one = missing_ranks(operation);
    ranks.insert(ranks.end(), of_one.begin(), of_one.end());
  }
  sort_unique(ranks);
  return ranks;
}

Operations::WaitedPeers Operations::waited_peers(uint64_t call) const {
  WaitedPeers found;
  for (const uint64_t number : open_numbers(operation_number(call, 0), operation_number(call + 1, 0))) {
    const Operation& operation = table_.at(number);
    std::vector<int32_t> ranks = missing_ranks(operation), silent;
    // A peer may itself wait for another one. Those that have sent nothing yet come first.
    const std::vector<char>& shown = operation.agreed.empty() ? operation.peer_has_begun : operation.agreed;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(silent),
                 [&](int32_t rank) { return !shown[rank]; });
    if (!silent.empty()) ranks = std::move(silent);
    if (ranks.empty()) continue;
    if (found.operations.empty()) {
      found.name = operation.task->name();
      found.first = is_first_of_call(number) && operation.to_agree > 0;
    }
    found.operations.push_back(number);
    found.ranks.insert(found.ranks.end(), ranks.begin(), ranks.end());
    if (found.first) break;  // nothing else of the call can have come
  }
  sort_unique(found.ranks);
  return found;
}

// ---- deadlines

// A peer may itself be blocked, as in a ring. Asks every peer whether it has begun this operation; the error
// names those that have not. A peer that receives the question ends the operation with a timeout, too.
void Operations::on_deadline_passed(uint64_t number) {
  Operation* const operation = find_open(number);
  if (!operation || operation->deadline_passed) return;
  Task& task = *operation->task;
  if (!operation->disagreement.ok()) return fail(task, Status(operation->disagreement));
  operation->deadline_passed = true;
  if (operation->timer) loop().cancel(operation->timer);
  operation->timer = loop().schedule(loop().now() + kAnswerLimit, [this, number] {
    if (Operation* const open = find_open(number)) open->timer = 0;
    time_out(number);
  });
  const transport::HasBegun question{members().view().view, peers_.rank(), number};
  for (int32_t rank = 0; rank < peers_.size(); ++rank) {
    if (rank == peers_.rank() || peers_.has_left(rank)) continue;
    ++operation->unanswered;
    peers_.call(rank, question, loop().now() + kAnswerLimit,
                if_alive(alive_, [this, number, rank](const Result<transport::Message>& answer) {
                  Operation* const open = find_open(number);
                  if (!open) return;
                  if (answer.ok()) note_begun(*open, rank);
                  if (!answer.ok() && answer.status().code() != Code::kTimeout)
                    open->not_begun.push_back(rank);
                  // If all have begun, their data may arrive with the answers.
                  if (--open->unanswered == 0 && !open->not_begun.empty()) time_out(number);
                }));
  }
  if (operation->unanswered == 0) time_out(number);
}

void Operations::time_out(uint64_t number) {
  Operation* const operation = find_open(number);
  if (!operation) return;
  Task& task = *operation->task;
  // A peer that answers "not begun" holds up the others. A peer that does not answer may only be slow.
  std::vector<int32_t> missing = operation->not_begun, silent;
  std::sort(missing.begin(), missing.end());
  for (int32_t rank = 0; rank < peers_.size(); ++rank) {
    if (rank == peers_.rank() || peers_.has_left(rank) || operation->peer_has_begun[rank]) continue;
    if (!std::binary_search(missing.begin(), missing.end(), rank)) silent.push_back(rank);
  }
  if (missing.empty()) missing = std::exchange(silent, {});
  if (missing.empty()) missing = missing_ranks(*operation);
  fail(task, members()
                 .timeout_error(task.name() + " did not end", task.limit(), missing, silent)
                 .with_operation(task.name()));
}

}  // namespace dsgd

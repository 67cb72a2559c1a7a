// How operations go on when a peer has left in good order. First operations of calls that the peer does not
// make leave it out, if they can. Chunks of steps that it has completed count as answered. Operations that
// still need it fail when its last answer has come.

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "core/mesh/operations.h"

namespace dsgd {

void Operations::on_departed(int32_t rank) {
  leave_out(rank);
  answer_for(rank);
}

// Removes a departed worker from the first operations of open calls that can go on without it, such as step
// headers.
void Operations::leave_out(int32_t rank) {
  for (const uint64_t number : open_numbers(0, kAll)) {
    Operation* const open = find_open(number);
    if (!open || !is_first_of_call(number) || !peers_.left_before(rank, number)) continue;
    Task& task = *open->task;
    if (task.leave_out(task.group().index_of(rank))) has_agreed(*open, rank);
  }
}

// Returns whether a departed worker has completed the start or step that the task belongs to, as its goodbye
// or the head says. It has then received everything that was sent to it for these; only its last answers may
// be lost.
bool Operations::has_completed(int32_t rank, const Task& task) const {
  const Kind kind = static_cast<Kind>(task.shape().kind);
  const bool is_of_training = kind == Kind::kStart || kind == Kind::kHeader || kind == Kind::kBucket;
  return is_of_training && peers_.left_after(rank, task.operation());
}

void Operations::answer_for(int32_t rank) {
  std::vector<std::pair<uint64_t, std::function<void(const Status&)>>> answered;
  for (auto& [number, operation] : table_) {
    if (!operation.task || !has_completed(rank, *operation.task)) continue;
    for (auto& [send_number, send] : operation.sends) {
      if (send.rank == rank) answered.emplace_back(number, std::move(send.done));
    }
    std::erase_if(operation.sends, [rank](const auto& send) { return send.second.rank == rank; });
    peers_.revoke(rank, number);  // else a late answer would call `done` twice
  }
  for (auto& [number, done] : answered) {
    if (find_open(number)) done({});
  }
}

void Operations::on_last_answer(int32_t rank) {
  std::vector<uint64_t> stuck;
  for (const auto& [number, operation] : table_) {
    if (!operation.task) continue;
    const std::vector<int32_t> missing = missing_ranks(operation);
    if (!std::binary_search(missing.begin(), missing.end(), rank)) continue;
    if (!has_completed(rank, *operation.task)) {
      stuck.push_back(number);
    } else if (!peers_.said_goodbye(rank)) {
      return fail_for_lost_data(rank, *operation.task);  // ends all operations
    }
  }
  for (const uint64_t number : stuck) {
    Operation* const open = find_open(number);  // the failure of one may have ended another
    if (!open) continue;
    Task& task = *open->task;
    fail(task,
         Status(Code::kWorkerLost,
                members().name(rank) + " closed its session before " + task.name() +
                    ", which needs all workers; check its output for an error, and that all programs make "
                    "the same calls")
             .with_rank(rank, members().host_of(rank))
             .with_operation(task.name()));
  }
}

// The goodbye comes behind all data of its sender, so without it data may be lost.
void Operations::fail_for_lost_data(int32_t rank, const Task& task) {
  peers_.report_failure(
      rank,
      Status(Code::kWorkerLost,
             members().name(rank) + " closed its session after " + task.name() +
                 ", but data that it sent for that did not arrive: the network was cut, or its machine has "
                 "failed; start the job again from a checkpoint")
          .with_rank(rank, members().host_of(rank))
          .with_operation(task.name()));
}

}  // namespace dsgd

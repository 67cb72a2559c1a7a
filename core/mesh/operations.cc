#include "core/mesh/operations.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/while_alive.h"

namespace dsgd {

using transport::BulkHeader;

namespace {

// The root of a broadcast ends when all peers have begun: if it ran ahead of them, its data would fill their
// memory.
bool is_broadcast_root(const BulkHeader& shape, int32_t rank) {
  return shape.algorithm == static_cast<uint8_t>(Algorithm::kChain) && shape.root == rank;
}

// Returns whether another event reports the cause of this rejection: the peer or the head reports that a
// session has ended, the end of a connection shows that it broke, and the head reports another view.
bool is_told_elsewhere(const Status& rejection) {
  return is_break(rejection) || rejection.code() == Code::kViewChanged || rejection.code() == Code::kEvicted;
}

}  // namespace

Operations::Operation* Operations::find_open(uint64_t number) {
  const auto it = table_.find(number);
  return it == table_.end() || !it->second.task ? nullptr : &it->second;
}

std::vector<uint64_t> Operations::open_numbers(uint64_t first, uint64_t last) const {
  std::vector<uint64_t> open;
  for (auto it = table_.lower_bound(first); it != table_.end() && it->first < last; ++it) {
    if (it->second.task) open.push_back(it->first);
  }
  return open;
}

// ---- from the beginning to the end

Task* Operations::add(std::unique_ptr<Task> added, transport::Time deadline) {
  Operation& operation = table_[added->operation()];
  operation.task = std::move(added);
  Task& task = *operation.task;
  const uint64_t number = task.operation();
  operation.begun = loop().now();
  operation.peer_has_begun.assign(members().view().members.size(), 0);
  if (deadline != transport::kNever)
    operation.timer = loop().schedule(deadline, [this, number] { on_deadline_passed(number); });
  if (!operation.failed_early.ok()) {
    end_with(number, Status(operation.failed_early));
    return nullptr;
  }
  if (is_first_of_call(number)) operation.sent_to.assign(operation.peer_has_begun.size(), 0);
  if (is_first_of_call(number) || is_broadcast_root(task.shape(), peers_.rank())) {
    operation.agreed.assign(operation.peer_has_begun.size(), 0);
    operation.to_agree = task.group().size() - 1;
  }
  task.start();
  if (task.ended() || !send_signature(operation) || report_mismatch(number)) return nullptr;
  for (Parked& chunk : std::exchange(operation.parked, {}))
    on_bulk_end(chunk.source, chunk.header, std::move(chunk.receipt));
  // Peers that left before this operation began: goes on without them, or fails.
  for (int32_t rank = 0; rank < peers_.size() && !task.ended(); ++rank) {
    if (!peers_.has_left(rank)) continue;
    leave_out(rank);
    on_last_answer(rank);
  }
  return task.ended() ? nullptr : &task;
}

void Operations::ended(Task& task, const Status& status) {
  const uint64_t number = task.operation();
  auto node = table_.extract(number);
  if (node.empty()) return;
  Operation& operation = done_.insert(std::move(node))->second;
  for (transport::TimerId timer : {operation.timer, operation.mismatch_timer}) {
    if (timer) loop().cancel(timer);
  }
  const auto done = std::move(task.done_);
  if (!status.ok()) {
    peers_.revoke(number);
    peers_.discard(number, chunk_error(status));
    task.drop_chunks(chunk_error(status));
    history_.note_failure(number, status);
    for (int32_t rank : missing_ranks(operation)) {
      if (!operation.peer_has_begun[rank]) end_wait(operation, rank, true);
    }
  }
  for (Parked& chunk : std::exchange(operation.parked, {}))
    chunk.receipt->finish(status.ok() ? late_chunk_error(chunk.source, chunk.header) : chunk_error(status));
  history_.end_operation(number);
  destroy_later();
  if (done) done(status);
}

void Operations::destroy_later() {  // when the caller's stack is gone
  if (destruction_posted_) return;
  loop().post(if_alive(alive_, [this] {
    destruction_posted_ = false;
    (void)std::exchange(done_, {});
  }));
  destruction_posted_ = true;
}

void Operations::end_with(uint64_t number, const Status& cause) {
  if (const Operation* open = find_open(number)) {
    Task& task = *open->task;
    return task.end(cause.operation().empty() ? Status(cause).with_operation(task.name()) : cause);
  }
  if (history_.has_ended(number)) return;
  Operation& operation = table_[number];
  operation.failed_early = cause;
  operation.differing.clear();
  reject_parked(operation, cause);
  forget_excess();
  if (on_early_) on_early_();
}

// Bounds the records that a hostile peer can create by naming operations: drops the highest one that has not
// begun and has no chunk.
void Operations::forget_excess() {
  const auto is_only_named = [](const auto& item) { return !item.second.task && item.second.parked.empty(); };
  if (std::count_if(table_.begin(), table_.end(), is_only_named) <=
      static_cast<ptrdiff_t>(History::kRememberedFailures))
    return;
  table_.erase(std::prev(std::find_if(table_.rbegin(), table_.rend(), is_only_named).base()));
}

void Operations::fail(Task& task, const Status& cause) {
  peers_.tell_operation_failed(task.operation(), cause);
  task.end(cause);
}

void Operations::end_open(uint64_t first, uint64_t last, const Status& cause) {
  for (auto it = table_.lower_bound(first); it != table_.end() && it->first < last;) {
    if (Task* const task = it->second.task.get()) {
      task->end(cause);
      it = table_.lower_bound(first);
    } else {
      ++it;
    }
  }
}

void Operations::drop(uint64_t first, uint64_t last, const Status& cause) {
  end_open(first, last, cause);
  history_.note_failure(first, cause);
  for (uint64_t number = first; number < last; ++number) history_.end_operation(number);
  for (auto it = table_.lower_bound(first); it != table_.end() && it->first < last; it = table_.erase(it))
    reject_parked(it->second, cause);
}

void Operations::end_call(uint64_t call, const Status& cause) {
  const uint64_t first = operation_number(call, 0), next = operation_number(call + 1, 0);
  if (!cause.ok()) {
    end_open(first, next, cause);
    history_.note_failure(first, cause);
  }
  history_.end_call(call);
  std::vector<Parked> unused;
  for (auto it = table_.lower_bound(first); it != table_.end() && it->first < next;) {
    std::move(it->second.parked.begin(), it->second.parked.end(), std::back_inserter(unused));
    it->second.parked.clear();
    it = it->second.task ? std::next(it) : table_.erase(it);
  }
  for (Parked& chunk : unused) chunk.receipt->finish(late_chunk_error(chunk.source, chunk.header));
}

void Operations::fail_all(const Status& cause) {
  end_open(0, kAll, cause);
  for (auto& [number, operation] : std::exchange(table_, {})) reject_parked(operation, chunk_error(cause));
}

void Operations::fail_session(const Status& cause) {
  session_error_ = peers_.options().views_change ? session_closed() : cause;
  fail_all(cause);
}

void Operations::drop_chunks() {
  done_.clear();
  for (auto& [number, operation] : table_) reject_parked(operation, session_closed());
}

void Operations::reject_parked(Operation& operation, const Status& cause) {
  for (Parked& chunk : std::exchange(operation.parked, {})) chunk.receipt->finish(cause);
}

Status Operations::late_chunk_error(int32_t source, const BulkHeader& header) const {
  if (!session_error_.ok()) return session_error_;
  if (const Status* failure = history_.failure_of(header.operation)) return *failure;
  const int32_t rank = peers_.rank();
  return Status(Code::kMismatch, "workers disagree: rank " + std::to_string(source) + " calls " +
                                     describe(header) + ", but rank " + std::to_string(rank) +
                                     " has already ended this call without rank " + std::to_string(source) +
                                     "; all workers must call the same operations in the same order")
      .with_rank(rank, members().host_of(rank));
}

// ---- chunks

void Operations::send(int32_t rank, const BulkHeader& header, std::span<const std::byte> data,
                      std::function<void(const Status&)> done) {
  Operation* const operation = find_open(header.operation);
  if (!operation) return;  // it has failed
  if (!operation->sent_to.empty()) operation->sent_to[rank] = 1;
  const uint64_t send = next_send_++;
  operation->sends[send] = {rank, std::move(done)};
  peers_.send(rank, header, data,
              if_alive(alive_, [this, send, number = header.operation](const Status& status) {
                Operation* const open = find_open(number);
                if (!open) return;
                if (!status.ok()) {
                  if (!is_told_elsewhere(status)) fail(*open->task, status);
                  return;
                }
                if (const auto answered = open->sends.extract(send)) answered.mapped().done(status);
              }));
}

void Operations::send_small(int32_t rank, const BulkHeader& header, std::span<const std::byte> data) {
  Operation* const operation = find_open(header.operation);
  if (operation && !operation->sent_to.empty()) operation->sent_to[rank] = 1;
  peers_.send_small(rank, header, data);
}

// A chunk that is written to its destination while it is read.
class Operations::Sink final : public transport::BulkSink {
 public:
  Sink(Operations& operations, uint64_t number, int32_t source, Landing landing)
      : operations_(operations), number_(number), source_(source), landing_(std::move(landing)) {}
  std::byte* destination(size_t offset, size_t) override {
    return landing_.combine ? nullptr : landing_.destination + offset;
  }
  void take(size_t offset, std::span<const std::byte> piece) override { landing_.write(offset, piece); }
  void landed() override { operations_.landed(number_, source_, landing_); }

 private:
  Operations& operations_;
  const uint64_t number_;
  const int32_t source_;
  const Landing landing_;
};

std::unique_ptr<transport::BulkSink> Operations::on_bulk(int32_t source, const BulkHeader& header,
                                                         size_t nbytes) {
  // Chunks that wait for their turn stay in order: none may overtake them.
  Operation* const operation = header.phase == kSignaturePhase ? nullptr : match(source, header);
  if (!operation) return nullptr;
  Task& task = *operation->task;
  auto landing = task.locate(task.group().index_of(source), header, nbytes);
  if (!landing || !landing->destination) return nullptr;  // taken, or rejected, when it is complete
  return std::make_unique<Sink>(*this, header.operation, source, std::move(*landing));
}

void Operations::landed(uint64_t number, int32_t source, const Landing& landing) {
  Operation* const operation = find_open(number);
  if (!operation) return;
  note_begun(*operation, source);
  landing.landed();
  has_agreed(*operation, source);
}

void Operations::on_bulk_end(int32_t source, const BulkHeader& header,
                             std::unique_ptr<transport::BulkReceipt> receipt) {
  const bool is_signature = header.phase == kSignaturePhase;
  if (is_signature && !(receipt = take_signature(source, header, std::move(receipt)))) return;
  if (Operation* const operation = match(source, header)) {
    if (is_signature) {
      receipt->finish({});
    } else {
      note_begun(*operation, source);
      take(*operation, source, header, std::move(receipt));
    }
    return has_agreed(*operation, source);
  }
  if (history_.has_ended(header.operation)) return receipt->finish(late_chunk_error(source, header));
  table_[header.operation].parked.push_back({source, header, std::move(receipt)});
  if (on_early_) on_early_();
}

void Operations::take(Operation& operation, int32_t source, const BulkHeader& header,
                      std::unique_ptr<transport::BulkReceipt> receipt) {
  Task& task = *operation.task;
  const int32_t index = task.group().index_of(source);
  const std::span<const std::byte> data = receipt->data();
  const auto landing = task.locate(index, header, data.size());
  if (!landing) {
    receipt->finish(Status(Code::kInternal, "unexpected chunk"));
    return task.protocol_error(index, header, data.size());
  }
  if (!landing->destination) return landing->keep(std::move(receipt));
  landing->write(0, data);
  receipt->finish({});
  landing->landed();
}

// ---- what peers say of operations

bool Operations::has_begun(uint64_t number) { return find_open(number) || history_.has_ended(number); }

void Operations::on_operation_failed(const transport::OperationFailed& message) {
  if (message.cause.code() == Code::kTimeout && history_.has_succeeded(message.operation))
    return peers_.report_given_up(message.rank, call_of(message.operation), message.cause);
  // The sender leaves in mid-operation. Forwards the cause, because this worker's goodbye may reach a third
  // worker before the sender's message does.
  const bool sender_is_leaving =
      message.cause.code() == Code::kWorkerLost && message.cause.rank() == message.rank;
  if (sender_is_leaving && !history_.has_ended(message.operation))
    announce_failure(message.operation, message.cause);
  end_with(message.operation, message.cause);
}

void Operations::on_chunk_rejected(uint64_t number, const Status& why) {
  Operation* const open = find_open(number);
  if (open && !is_told_elsewhere(why)) fail(*open->task, why);
}

bool Operations::only_peers_have_begun(uint64_t number, std::optional<Kind> kind) const {
  const auto found = table_.find(number);
  if (found == table_.end() || found->second.task) return false;
  const Operation& operation = found->second;
  if (operation.parked.empty()) return !operation.failed_early.ok();
  return !kind || operation.parked.front().header.kind == static_cast<uint8_t>(*kind);
}

}  // namespace dsgd

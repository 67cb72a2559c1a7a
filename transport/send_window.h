// The chunks that wait for their turn on a connection, and how much of what was sent is unanswered. The limit
// bounds the memory that a receiver which is behind needs for chunks of operations it has not begun.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace dsgd::transport {

// Chunk has nbytes().
template <typename Chunk>
class SendWindow {
 public:
  // The limit is for the unanswered bytes of each operation, or of all operations together.
  enum class Limits { kEachOperation, kAllTogether };
  SendWindow(Limits limits, size_t limit) : limits_(limits), limit_(limit) {}

  void push(uint64_t operation, Chunk chunk) { queues_[operation].waiting.push_back(std::move(chunk)); }

  // Takes the next chunk that may be sent now, of the lowest operation that has one: it is the one that the
  // receiver waits for. Each operation may have one unanswered chunk beyond the limit, so that no operation
  // blocks another.
  std::optional<Chunk> take() {
    for (auto& [operation, queue] : queues_) {
      if (queue.waiting.empty()) continue;
      const size_t nbytes = queue.waiting.front().nbytes();
      const size_t unanswered = limits_ == Limits::kEachOperation ? queue.unanswered : unanswered_;
      if (queue.sent > 0 && unanswered + nbytes > limit_) continue;
      std::optional<Chunk> chunk(std::move(queue.waiting.front()));
      queue.waiting.pop_front();
      ++queue.sent;
      queue.unanswered += nbytes;
      unanswered_ += nbytes;
      return chunk;
    }
    return std::nullopt;
  }

  // A chunk that was taken has been answered, or will not be sent.
  void answered(uint64_t operation, size_t nbytes) {
    const auto at = queues_.find(operation);
    if (at == queues_.end()) return;  // take_all() came between
    unanswered_ -= nbytes;
    at->second.unanswered -= nbytes;
    --at->second.sent;
    forget_if_empty(at);
  }

  // Drops the chunks of the operation that have not been taken.
  void drop(uint64_t operation) {
    const auto at = queues_.find(operation);
    if (at == queues_.end()) return;
    at->second.waiting.clear();
    forget_if_empty(at);
  }

  // Takes the chunks that wait, whatever the limit, and forgets those that are unanswered.
  std::vector<Chunk> take_all() {
    std::vector<Chunk> all;
    for (auto& [operation, queue] : queues_)
      std::move(queue.waiting.begin(), queue.waiting.end(), std::back_inserter(all));
    queues_.clear();
    unanswered_ = 0;
    return all;
  }

  // Returns whether no chunk waits.
  bool empty() const {
    for (const auto& [operation, queue] : queues_) {
      if (!queue.waiting.empty()) return false;
    }
    return true;
  }

 private:
  struct Queue {
    std::deque<Chunk> waiting;
    size_t sent = 0;        // chunks that are unanswered
    size_t unanswered = 0;  // their bytes
  };

  void forget_if_empty(typename std::map<uint64_t, Queue>::iterator at) {
    if (at->second.waiting.empty() && at->second.sent == 0) queues_.erase(at);
  }

  const Limits limits_;
  const size_t limit_;
  std::map<uint64_t, Queue> queues_;  // by operation
  size_t unanswered_ = 0;             // bytes, of all operations
};

}  // namespace dsgd::transport

// The workers of the job by rank, and how messages name them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/group/group.h"
#include "transport/messages.h"

namespace dsgd {

// Returns whether the connection broke; otherwise the status is an answer of the peer.
bool is_break(const Status& status);
Status session_closed();  // the answer to a chunk that comes too late
Status call_of_earlier_view();

class Members {
 public:
  Members() = default;
  explicit Members(const transport::JoinReply& view);

  const transport::JoinReply& view() const { return view_; }
  int32_t rank() const { return view_.rank; }
  int32_t size() const { return static_cast<int32_t>(view_.members.size()); }
  bool is_peer(int32_t rank) const { return rank >= 0 && rank < size() && rank != view_.rank; }
  // Returns, for each rank of this view, the rank of its worker in the view `before`; -1: it was not in it.
  std::vector<int32_t> ranks_in(const Members& before) const;
  const std::shared_ptr<const Group>& world() const { return world_; }  // all workers of the view
  // "rank 2 (worker 'w2' on host nodeb, pid 4242)"
  std::string name(int32_t rank) const;
  std::string names(std::span<const int32_t> ranks) const;  // separated by commas
  std::string host_of(int32_t rank) const;                  // empty for a rank that is not in the view

  Status lost_error(int32_t rank, const Status& why) const;
  Status unreachable_error(int32_t rank, const Status& why) const;
  Status closed_error(int32_t rank) const;
  // Returns the timeout error "WHAT within LIMIT; still waiting for ...", which names the missing peers.
  // `limit` begins with the name of the setting that the deadline comes from ("step_timeout = 300.0 s").
  Status timeout_error(const std::string& what, const std::string& limit, std::span<const int32_t> missing,
                       std::span<const int32_t> silent = {}) const;

 private:
  transport::JoinReply view_;
  std::shared_ptr<const Group> world_;
};

}  // namespace dsgd

// The views of the job as one worker knows them. Pure data; the member owns it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "transport/messages.h"

namespace dsgd {

class MemberViews {
 public:
  void begin(transport::JoinReply reply) { first_ = present_ = std::move(reply); }

  // The view in which this worker joined.
  const transport::JoinReply& first() const { return first_; }
  // The view that the head has last published; a learner is its last member.
  const transport::JoinReply& present() const { return present_; }
  // The present view without workers that have left, and with this one as the last.
  transport::JoinReply present_with_learner() const;

  int32_t number() const;                    // of this worker; -1: it has not joined
  const transport::MemberInfo& own() const;  // this worker in the present view
  const transport::MemberInfo& own_at_join() const;
  std::string head_host() const;  // empty: the head runs by itself
  bool hosts_head() const { return first_.head_rank >= 0 && first_.head_rank == first_.rank; }
  bool host_left() const { return host_left_; }  // the worker that hosts the head left in good order
  // Addresses of the workers that are neither on the head's machine nor on this worker's.
  std::vector<std::vector<std::string>> remote_peers() const;

  // The worker with this number has left in good order. Returns its rank in the present view; -1: it is not
  // in it.
  int32_t note_left(int32_t number);
  // The head has published this view. Returns false if this worker cannot take part in it.
  bool change(const transport::WatchReply& view);

 private:
  transport::JoinReply first_, present_;
  bool host_left_ = false;
  std::vector<int32_t> departed_;  // of a learner: numbers of workers that have left
};

}  // namespace dsgd

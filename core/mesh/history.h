// The calls and operations that have ended on this worker, and why the newest of them failed.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>

#include "core/mesh/channels.h"
#include "transport/base/status.h"

namespace dsgd {

class History {
 public:
  static constexpr size_t kRememberedFailures = 64;

  bool has_ended(uint64_t operation) const {
    const uint64_t call = call_of(operation);
    return call < call_number(channel_of(call), calls_below_[channel_of(call)]) || calls_.count(call) > 0 ||
           operations_.count(operation) > 0;
  }
  bool has_succeeded(uint64_t operation) const { return has_ended(operation) && !failure_of(operation); }
  void end_operation(uint64_t operation) { operations_.insert(operation); }
  void end_call(uint64_t call) {
    uint64_t& below = calls_below_[channel_of(call)];
    calls_.insert(call);
    while (calls_.erase(call_number(channel_of(call), below)) > 0) ++below;
    operations_.erase(operations_.lower_bound(operation_number(call, 0)),
                      operations_.lower_bound(operation_number(call + 1, 0)));
  }
  // Calls of a channel below this one have ended.
  void skip_to(uint64_t call) {
    calls_below_[channel_of(call)] = call % kCallsOfAChannel;
    calls_.erase(calls_.lower_bound(call_number(channel_of(call), 0)), calls_.lower_bound(call));
    operations_.erase(operations_.lower_bound(operation_number(call_number(channel_of(call), 0), 0)),
                      operations_.lower_bound(operation_number(call, 0)));
  }
  void note_failure(uint64_t operation, const Status& cause) {
    if (!failed_.try_emplace(operation, cause).second) return;
    failures_.push_back(operation);
    if (failures_.size() <= kRememberedFailures) return;
    failed_.erase(failures_.front());
    failures_.pop_front();
  }
  // Returns why this operation failed, or else why another one of its call did; null if none failed.
  const Status* failure_of(uint64_t operation) const {
    auto it = failed_.find(operation);
    if (it == failed_.end()) it = failed_.lower_bound(operation_number(call_of(operation), 0));
    return it != failed_.end() && call_of(it->first) == call_of(operation) ? &it->second : nullptr;
  }

 private:
  // By channel: the lowest index of a call that has not ended.
  std::array<uint64_t, kChannels> calls_below_ = {1, 1, 1, 1, 1};
  std::set<uint64_t> calls_;           // ended calls above the lowest one that has not ended
  std::set<uint64_t> operations_;      // that have ended, of calls that have not
  std::map<uint64_t, Status> failed_;  // the newest, by operation, for chunks that come late
  std::deque<uint64_t> failures_;      // the keys of failed_, the oldest first
};

}  // namespace dsgd

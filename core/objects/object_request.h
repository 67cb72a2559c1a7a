// A put or a deletion of an object that other workers have to answer.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>

#include "core/mesh/members.h"
#include "transport/loop.h"

namespace dsgd {

// The rank that decides which put of a name wins, and that carries out deletions.
inline constexpr int32_t kNameOwner = 0;

struct ObjectDeadline {
  transport::Time time;
  std::string limit;  // the setting that it comes from
};

struct ObjectRequest {
  std::string name;
  uint64_t put;                             // its number
  std::function<void(const Status&)> done;  // null once the request has ended
  transport::TimerId timer = 0;
  std::set<int32_t> waiting = {};  // workers that have not answered yet
  // The part of `waiting` whose connection has ended: the worker has left, or the session will fail.
  std::set<int32_t> cut_off = {};
};

// Returns what a request waits for: "object 'NAME'" with `text` and the workers that have not answered.
inline Status unanswered(const Members& members, const char* operation, const std::string& name,
                         const std::string& text, std::span<const int32_t> missing) {
  return Status(Code::kWaitTimeout, "object '" + name + "'" + text + members.names(missing))
      .with_rank(missing.front(), members.host_of(missing.front()))
      .with_operation(operation);
}

}  // namespace dsgd

// Warns of calls that have not ended. The first warning comes after an interval, each further one after twice
// the previous wait: after 1, 3, 7, ... intervals. One timer serves all calls, and none runs while no call is
// open.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "transport/base/status.h"
#include "transport/loop.h"

namespace dsgd {

// The reason why an open call has not ended.
struct WaitReport {
  Status text;                      // a sentence, with the name of the call and the first rank; OK: not known
  std::vector<int32_t> ranks = {};  // workers that it waits for, ascending
  bool known() const { return !text.ok(); }
};

class StallWatch {
 public:
  using Ask = std::function<WaitReport()>;
  StallWatch(transport::Loop& loop, transport::Duration interval, std::shared_ptr<Log> log);
  uint64_t begin(Ask ask);  // returns a ticket for end()
  void end(uint64_t ticket) { open_.erase(ticket); }
  // Watches a call until it ends: returns a callback for its end, which passes it on to `done`.
  std::function<void(const Status&)> watch(Ask ask, std::function<void(const Status&)> done) {
    return [this, ticket = begin(std::move(ask)), done = std::move(done)](const Status& status) {
      end(ticket);
      done(status);
    };
  }
  // Calls `use` for each open call, the oldest first, with its ticket, how long it has been open and what it
  // waits for.
  void each(
      const std::function<void(uint64_t ticket, transport::Duration open, const WaitReport&)>& use) const;
  void close();  // call before the loop ends

 private:
  struct Open {
    transport::Time began, due;
    transport::Duration interval;
    Ask ask;
  };
  void arm();
  void warn_of_due_calls();

  transport::Loop& loop_;
  const transport::Duration interval_;
  std::shared_ptr<Log> log_;
  std::map<uint64_t, Open> open_;  // by ticket
  uint64_t tickets_ = 0;
  transport::TimerId timer_ = 0;
  transport::Time timer_due_{};  // of the armed timer; its call may have ended already
  std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace dsgd

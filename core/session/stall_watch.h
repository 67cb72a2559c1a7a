// Warns of calls that have not ended: once after an interval, then again after twice as long each time. One
// timer serves all calls, and none runs while no call is open.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "core/base/log.h"
#include "transport/base/status.h"
#include "transport/loop.h"

namespace dsgd {

class StallWatch {
 public:
  // Returns what a call waits for, with the operation's name; OK if there is nothing to warn of.
  using Ask = std::function<Status(uint64_t call)>;
  StallWatch(transport::Loop& loop, transport::Duration interval, std::shared_ptr<Log> log, Ask ask);
  void begin(uint64_t call);
  void end(uint64_t call) { open_.erase(call); }
  void close();  // the loop may end

 private:
  struct Open {
    transport::Time began, due;
    transport::Duration interval;
  };
  void arm();
  void look();

  transport::Loop& loop_;
  const transport::Duration interval_;
  std::shared_ptr<Log> log_;
  Ask ask_;
  std::map<uint64_t, Open> open_;
  transport::TimerId timer_ = 0;
  std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace dsgd

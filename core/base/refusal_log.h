// Logs refused connections, and other events that a peer may repeat at will, at a limited rate: the first of
// a cause in full, then one line with the number of further ones every 10 s.
#pragma once

#include <memory>
#include <string>

#include "core/base/log.h"
#include "transport/loop.h"

namespace dsgd {

class RefusalLog {
 public:
  RefusalLog(transport::Loop& loop, std::shared_ptr<Log> log);
  // Loop only. `cause`: one of a few fixed clauses, such as "their token is wrong"; `message`: the details of
  // this refusal.
  void note(const std::string& cause, const std::string& message);
  // `event`: a fixed sentence, such as "a worker disconnected".
  void note_event(const std::string& event, const std::string& message);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace dsgd

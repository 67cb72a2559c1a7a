// Logs refused connections, however many come: the first of a cause in full, then one line with the number of
// further ones every 10 s.
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

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace dsgd

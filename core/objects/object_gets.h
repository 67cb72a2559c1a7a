// The gets that wait until this worker holds an object of their name. Everything is on the session's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>

#include "core/objects/object.h"
#include "transport/base/status.h"

namespace dsgd {

class ObjectGets {
 public:
  using Done = std::function<void(Result<SharedObject>)>;

  uint64_t add(const std::string& name, Done done);  // returns a ticket for cancel(), which is not 0
  void cancel(uint64_t ticket, const Status& why);   // harmless for a get that has ended
  void answer(const std::string& name, const SharedObject& object);  // ends all gets of this name
  void fail(const Status& cause);                                    // ends all gets
  bool is_waiting(const std::string& name) const;

 private:
  struct Get {
    uint64_t ticket;
    std::string name;
    Done done;
  };
  std::list<Get> waiting_;  // the oldest first
  uint64_t next_ticket_ = 1;
};

}  // namespace dsgd

// The process an object was made in. A forked child has none of the threads, no right to the sockets, whose
// epoll state it shares with its parent, and may find any lock held for ever: it leaves everything alone. So
// does a process that exits, whose loops are at rest.
#pragma once

#include <unistd.h>

#include <utility>

#include "transport/uv/at_exit.h"

namespace dsgd::transport::uv {

class Origin {
 public:
  bool is_forked() const { return getpid() != process_; }
  bool is_gone() const { return is_forked() || process_exits(); }

  // Gives up what `pointer` holds without destroying it.
  template <typename Pointer>
  static void leave(Pointer& pointer) {
    new Pointer(std::move(pointer));
  }

 private:
  const pid_t process_ = getpid();
};

}  // namespace dsgd::transport::uv

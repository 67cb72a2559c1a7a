// The process an object was made in. A forked child has none of the threads, no right to the sockets, whose
// epoll state it shares with its parent, and may find any lock held for ever: it leaves everything alone.
#pragma once

#include <unistd.h>

#include <utility>

namespace dsgd::transport::uv {

class Origin {
 public:
  bool is_elsewhere() const { return getpid() != process_; }

  // Gives up what `pointer` holds without destroying it.
  template <typename Pointer>
  static void leave(Pointer& pointer) {
    new Pointer(std::move(pointer));
  }

 private:
  const pid_t process_ = getpid();
};

}  // namespace dsgd::transport::uv

// One descriptor with one uv_poll handle for both directions. Interest is armed lazily: the system call comes
// first, and interest is dropped only when an event arrives that nobody wants, so a busy stream costs no
// epoll_ctl.
#pragma once

#include <uv.h>

#include <memory>

#include "transport/base/status.h"
#include "transport/uv/event_port.h"
#include "transport/uv/fd.h"

namespace dsgd::transport::uv {

class PollFd {
 public:
  class Handler {
   public:
    // An error on the descriptor shows as both: the system call tells the reason. The handler may destroy the
    // PollFd.
    virtual void on_readable() = 0;
    virtual void on_writable() = 0;

   protected:
    ~Handler() = default;
  };

  static Result<std::unique_ptr<PollFd>> make(UvEventPort& port, Fd fd, Handler* handler);
  ~PollFd();
  PollFd(const PollFd&) = delete;
  PollFd& operator=(const PollFd&) = delete;

  int fd() const { return fd_.get(); }
  void want_read(bool want);
  void want_write(bool want);
  Fd release();  // gives the descriptor away and stops watching it

 private:
  PollFd(UvEventPort& port, Fd fd, Handler* handler, uv_poll_t* handle);
  static void fired(uv_poll_t* handle, int status, int events);
  static void serve(uv_poll_t* handle, int status, int events);
  void arm(int events);
  void stop();

  UvEventPort& port_;
  Fd fd_;
  Handler* handler_;
  uv_poll_t* handle_;
  int wanted_ = 0;
  int armed_ = 0;
};

}  // namespace dsgd::transport::uv

#include "transport/uv/poll_fd.h"

#include "transport/uv/guard.h"

namespace dsgd::transport::uv {

Result<std::unique_ptr<PollFd>> PollFd::make(UvEventPort& port, Fd fd, Handler* handler) {
  auto* handle = new uv_poll_t;
  if (int error = uv_poll_init(port.loop(), handle, fd.get()); error != 0) {
    delete handle;  // an init that failed left nothing behind in the loop
    return Status(Code::kLimit, "cannot watch a socket: " + errno_text(-error));
  }
  return std::unique_ptr<PollFd>(new PollFd(port, std::move(fd), handler, handle));
}

PollFd::PollFd(UvEventPort& port, Fd fd, Handler* handler, uv_poll_t* handle)
    : port_(port), fd_(std::move(fd)), handler_(handler), handle_(handle) {
  handle_->data = this;
}

PollFd::~PollFd() { stop(); }  // before the descriptor is closed by its owner

Fd PollFd::release() {
  stop();
  return std::move(fd_);
}

void PollFd::stop() {
  if (!handle_) return;
  uv_poll_stop(handle_);
  handle_->data = nullptr;
  uv_close(reinterpret_cast<uv_handle_t*>(handle_),
           [](uv_handle_t* handle) { delete reinterpret_cast<uv_poll_t*>(handle); });
  handle_ = nullptr;
}

void PollFd::want_read(bool want) {
  wanted_ = want ? wanted_ | UV_READABLE : wanted_ & ~UV_READABLE;
  if (want && !(armed_ & UV_READABLE)) arm(armed_ | UV_READABLE);
}

void PollFd::want_write(bool want) {
  wanted_ = want ? wanted_ | UV_WRITABLE : wanted_ & ~UV_WRITABLE;
  if (want && !(armed_ & UV_WRITABLE)) arm(armed_ | UV_WRITABLE);
}

void PollFd::arm(int events) {
  armed_ = events;
  if (!handle_) return;
  if (events == 0) {
    uv_poll_stop(handle_);
  } else {
    uv_poll_start(handle_, events, fired);
  }
}

void PollFd::fired(uv_poll_t* handle, int status, int events) {
  auto* self = static_cast<PollFd*>(handle->data);
  if (!self) return;
  UvEventPort& port = self->port_;
  port.alert();
  if (port.guarded([&] { serve(handle, status, events); })) return;
  // It would be called again at once, and for ever.
  if ((self = static_cast<PollFd*>(handle->data))) self->arm(self->wanted_ = 0);
}

void PollFd::serve(uv_poll_t* handle, int status, int events) {
  auto* self = static_cast<PollFd*>(handle->data);
  if (status < 0) {
    // POLLERR shows as EBADF, and libuv has stopped the handle. The system call tells the real error.
    events = UV_READABLE | UV_WRITABLE;
    self->armed_ = 0;
  }
  if ((events & UV_READABLE) && (self->wanted_ & UV_READABLE)) {
    self->handler_->on_readable();
    self = static_cast<PollFd*>(handle->data);
    if (!self) return;
  }
  if ((events & UV_WRITABLE) && (self->wanted_ & UV_WRITABLE)) {
    self->handler_->on_writable();
    self = static_cast<PollFd*>(handle->data);
    if (!self) return;
  }
  if (self->wanted_ & ~self->armed_) return self->arm(self->armed_ | self->wanted_);
  const int unwanted = events & self->armed_ & ~self->wanted_;
  if (unwanted) self->arm(self->armed_ & ~unwanted);
}

}  // namespace dsgd::transport::uv

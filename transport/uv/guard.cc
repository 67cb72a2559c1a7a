#include "transport/uv/guard.h"

#include <pthread.h>
#include <signal.h>
#include <uv.h>

#include <cstring>
#include <system_error>
#include <utility>

namespace dsgd::transport::uv {

DefaultFloats::DefaultFloats() {
  fegetenv(&host_);
  set_default_floats();
}

DefaultFloats::~DefaultFloats() { fesetenv(&host_); }

void set_default_floats() { fesetenv(FE_DFL_ENV); }

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

Result<std::thread> start_thread(const std::string& name, std::function<void()> program,
                                 const std::string& what) {
  try {
    const SignalsBlocked blocked;
    return std::thread([name = name.substr(0, 15), program = std::move(program)] {
      pthread_setname_np(pthread_self(), name.c_str());
      program();
    });
  } catch (const std::system_error& error) {
    return Status(Code::kLimit, "cannot start " + what + ": " + error.what() +
                                    "; raise the limit of processes (ulimit -u)");
  }
}

bool is_exhaustion(const kj::Exception& exception) {
  return std::strstr(exception.getDescription().cStr(), "std::bad_alloc") != nullptr;
}

Status to_status(const kj::Exception& exception) {
  const std::string text = exception.getDescription().cStr();
  if (is_exhaustion(exception)) {
    return Status(Code::kNoMemory, text.rfind("remote", 0) == 0
                                       ? "the peer is out of memory for messages"
                                       : "there is no memory for the messages of a connection");
  }
  switch (exception.getType()) {
    case kj::Exception::Type::DISCONNECTED:
      return Status(Code::kWorkerLost, text);
    case kj::Exception::Type::OVERLOADED:
      return Status(Code::kLimit, text);
    case kj::Exception::Type::UNIMPLEMENTED:
      return Status(Code::kUnsupported, text);
    case kj::Exception::Type::FAILED:
      break;
  }
  return Status(Code::kInternal, text);
}

std::string errno_text(int error) {
  const int code = -error;
  char text[128], name[64];
  uv_strerror_r(code, text, sizeof text);
  uv_err_name_r(code, name, sizeof name);
  return std::string(text) + " (" + name + ")";
}

}  // namespace dsgd::transport::uv

// Separates KJ and the host on a thread that drives a loop: KJ's messages never reach stderr, floating point
// arithmetic has its default rounding and denormals, and exceptions become a Status.
#pragma once

#include <kj/exception.h>
#include <kj/string.h>
#include <signal.h>

#include <cfenv>
#include <functional>
#include <string>
#include <thread>

#include "transport/base/status.h"

namespace dsgd::transport::uv {

// Before a function that has a QuietKj: its frame is on the thread's stack, not on one that AddressSanitizer
// fakes.
#define DSGD_REAL_STACK __attribute__((no_sanitize("address")))

// Lives on the stack of the driving thread (KJ's rule).
class QuietKj final : public kj::ExceptionCallback {
 public:
  void logMessage(kj::LogSeverity, const char*, int, int, kj::String&&) override {}
  StackTraceMode stackTraceMode() override { return StackTraceMode::NONE; }
};

// Default floating point environment while in scope: a host may flush denormals or round otherwise on its own
// threads, and sums made on them must be the same bits on every worker.
class DefaultFloats {
 public:
  DefaultFloats();
  ~DefaultFloats();
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
  fenv_t host_;
};

void set_default_floats();
// Blocks all signals on the calling thread while it starts another one, which inherits the mask: the host's
// handlers run in the host's threads, from the new thread's beginning.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Starts a thread with all signals blocked. The error calls it `what`. The system cuts `name` to 15 bytes.
Result<std::thread> start_thread(const std::string& name, std::function<void()> program,
                                 const std::string& what = "a thread");

Status to_status(const kj::Exception& exception);
// Returns whether KJ made the exception from std::bad_alloc, here or at the peer.
bool is_exhaustion(const kj::Exception& exception);
std::string errno_text(int error);  // "Connection refused (ECONNREFUSED)"

}  // namespace dsgd::transport::uv

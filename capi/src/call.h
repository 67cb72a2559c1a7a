// One guard wraps the body of every fallible function: no exception crosses the boundary, and a Status
// becomes a code and an error object. Call carries the function's name, for messages, and the checks of
// arguments that need no state.
#pragma once

#include <cxxabi.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "capi/src/error.h"
#include "capi/src/handle.h"
#include "dsgd/dsgd.h"
#include "transport/base/status.h"

namespace dsgd::capi {

class Call {
 public:
  explicit Call(const char* function) : function_(function) {}
  ~Call();  // releases the handles that the call has retained
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const char* function() const { return function_; }
  // "dsgd_bind: argument 'value' is NULL ..."
  Status fail(Code code, const std::string& message) const;
  Status invalid(const std::string& message) const { return fail(Code::kInvalidArgument, message); }

  // A required argument that is not a handle.
  Status not_null(const void* pointer, const char* argument) const;
  // A required string: not NULL and not empty.
  Status not_empty(const char* text, const char* argument) const;
  template <typename T>
  Status handle(const T* handle, const char* argument) const {
    if (is_handle(handle)) return {};
    return bad_handle(handle == nullptr, argument, T::kName);
  }

  // local(): checks that the handle is valid and belongs to this process, and retains it until the call ends.
  // open(): also checks that the session is open and has joined; with two handles, that both are of one
  // session.
  Status local(const dsgd_session* session) const;
  Status local(const dsgd_op* op) const;
  Status open(const dsgd_session* session) const;
  Status open(const dsgd_parameter* parameter) const;
  Status open(const dsgd_replica* replica) const;
  Status open(const dsgd_replica* replica, const dsgd_parameter* parameter) const;

  // Adds the function's name to the status of alive() of a session or a head.
  Status alive(const Status& status, const char* kind) const;
  Status wait_time(int32_t timeout_ms) const;  // -1 or more
  // `values`: the enum of the known bits; null if there are none.
  Status flags(uint32_t flags, uint32_t known, const char* values) const;
  Status dtype(int32_t dtype) const;
  Status reduction(int32_t reduction) const;
  Status whole_group(const dsgd_group* group) const;
  Status closed_error() const;
  Status on_host(const void* data, size_t nbytes, const char* argument) const;
  // A buffer of whole elements; NULL is right for no bytes.
  Status buffer(const void* data, size_t nbytes, int32_t dtype, const char* argument) const;

 private:
  Status bad_handle(bool null, const char* argument, const char* kind) const;
  Status forked_error(const char* kind) const;

  const char* const function_;
  mutable dsgd_session* session_ = nullptr;  // retained
  mutable dsgd_op* op_ = nullptr;            // retained
};

// Returns a copy for dsgd_text_free. Throws std::bad_alloc.
char* copy_text(const std::string& text);

template <typename Body>
int32_t guard(const char* function, dsgd_error** error, Body&& body) {
  try {
    const Status status = body(Call(function));
    return status.ok() ? static_cast<int32_t>(DSGD_OK) : give_error(status, error);
  } catch (const std::bad_alloc&) {
    return give_no_memory(error);
  } catch (abi::__forced_unwind&) {
    throw;  // pthread_cancel() unwinds the host's thread by this exception, which must be rethrown
  } catch (const std::exception& exception) {
    return give_error(Status(Code::kInternal, std::string(function) + ": unexpected exception (" +
                                                  exception.what() + "); please report this"),
                      error);
  } catch (...) {
    return give_error(
        Status(Code::kInternal, std::string(function) + ": unexpected exception; please report this"), error);
  }
}

// For a function of an open session, or of a parameter or a replica of one.
template <typename T, typename Body>
int32_t guard_open(const char* function, dsgd_error** error, const T* of, Body&& body) {
  return guard(function, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.open(of));
    return body(call);
  });
}

// For functions that return a number which is negative on failure.
template <typename Number, typename Body>
Number guard_number(const char* function, Body&& body) {
  Number number = 0;
  const int32_t code = guard(function, nullptr, [&](const Call& call) { return body(call, &number); });
  return code == DSGD_OK ? number : static_cast<Number>(code);
}

}  // namespace dsgd::capi

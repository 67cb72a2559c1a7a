#include "capi/src/call.h"

#include <cstring>

#include "capi/src/backends.h"
#include "capi/src/operation.h"
#include "capi/src/session.h"
#include "core/base/dtype.h"

namespace dsgd::capi {

Call::~Call() {
  if (op_ && op_->release()) delete op_;
  if (session_ && session_->release()) delete session_;
}

Status Call::fail(Code code, const std::string& message) const {
  return Status(code, std::string(function_) + ": " + message);
}

Status Call::not_null(const void* pointer, const char* argument) const {
  if (pointer) return {};
  return invalid(std::string("argument '") + argument + "' is NULL");
}

Status Call::not_empty(const char* text, const char* argument) const {
  DSGD_RETURN_IF_ERROR(not_null(text, argument));
  if (*text) return {};
  return invalid(std::string("argument '") + argument + "' is an empty string; give a name");
}

Status Call::bad_handle(bool null, const char* argument, const char* kind) const {
  if (null) return invalid(std::string("argument '") + argument + "' is NULL; it must be a " + kind);
  return invalid(std::string("argument '") + argument + "' is not a " + kind +
                 ": it was freed, or is a handle of another kind");
}

Status Call::forked_error(const char* kind) const {
  const char* const remedy = kind == std::string("head") ? "start a head here with dsgd_head_start"
                                                         : "open a session here with dsgd_init";
  return fail(Code::kForked,
              std::string("this ") + kind + " belongs to the parent of this forked process; " + remedy);
}

Status Call::alive(const Status& status, const char* kind) const {
  if (status.ok()) return {};
  return status.code() == Code::kForked ? forked_error(kind) : fail(status.code(), status.message());
}

Status Call::closed_error() const {
  return fail(Code::kClosed, "the session is closed; open a new one with dsgd_init");
}

Status Call::local(const dsgd_session* session) const {
  DSGD_RETURN_IF_ERROR(handle(session, "session"));
  if (!session_) {
    session_ = const_cast<dsgd_session*>(session);  // only its reference count changes
    session_->retain();
  }
  return alive(session->core->alive(), "session");
}

Status Call::local(const dsgd_op* op) const {
  DSGD_RETURN_IF_ERROR(handle(op, "op"));
  if (!op_) {
    op_ = const_cast<dsgd_op*>(op);  // only its reference count changes
    op_->retain();
  }
  return op->table->forked() ? forked_error("op") : Status();
}

Status Call::open(const dsgd_session* session) const {
  DSGD_RETURN_IF_ERROR(local(session));
  if (session->core->closed()) return closed_error();
  Status joined = session->core->joined();
  return joined.code() == Code::kState ? fail(Code::kState, joined.message()) : joined;
}

Status Call::open(const dsgd_parameter* parameter) const {
  DSGD_RETURN_IF_ERROR(handle(parameter, "parameter"));
  return open(parameter->session);
}

Status Call::open(const dsgd_replica* replica) const {
  DSGD_RETURN_IF_ERROR(handle(replica, "replica"));
  return open(replica->session);
}

Status Call::open(const dsgd_replica* replica, const dsgd_parameter* parameter) const {
  DSGD_RETURN_IF_ERROR(open(replica));
  DSGD_RETURN_IF_ERROR(handle(parameter, "parameter"));
  if (replica->session == parameter->session) return {};
  return invalid("parameter '" + parameter->core->name +
                 "' belongs to another session than the replica; use handles of one session");
}

Status Call::wait_time(int32_t timeout_ms) const {
  if (timeout_ms >= -1) return {};
  return invalid("timeout_ms is " + std::to_string(timeout_ms) + "; give milliseconds, or -1");
}

Status Call::flags(uint32_t flags, uint32_t known, const char* values) const {
  if ((flags & ~known) == 0) return {};
  return invalid("unknown bits in flags " + std::to_string(flags) +
                 (values ? std::string("; use values of enum ") + values : "; set it to 0"));
}

Status Call::dtype(int32_t dtype) const {
  if (valid_dtype(dtype)) return {};
  return invalid("unknown dtype " + std::to_string(dtype) + "; use a value of enum dsgd_dtype (0 to 8)");
}

Status Call::reduction(int32_t reduction) const {
  if (valid_reduction(reduction)) return {};
  return invalid("unknown reduction " + std::to_string(reduction) +
                 "; use a value of enum dsgd_reduction (0 to 4)");
}

Status Call::whole_group(const dsgd_group* group) const {
  if (group == nullptr) return {};
  return invalid("argument 'group' must be NULL: this version supports only the group of all workers");
}

Status Call::on_host(const void* data, size_t nbytes, const char* argument) const {
  const auto there = locate(data, nbytes);
  const auto elsewhere = [&](const std::string& where) {
    return invalid(std::string("argument '") + argument + "' is " + where);
  };
  if (!there.ok()) return elsewhere(there.status().message());
  if (there.value().empty()) return {};
  return elsewhere("memory of " + there.value() + "; objects take memory of the host, give a copy there");
}

Status Call::buffer(const void* data, size_t nbytes, int32_t dtype, const char* argument) const {
  const size_t element = dtype_size(static_cast<DType>(dtype));
  if (nbytes != 0) DSGD_RETURN_IF_ERROR(not_null(data, argument));
  if (nbytes % element == 0) return {};
  return invalid(std::string("argument '") + argument + "' has " + std::to_string(nbytes) +
                 " bytes, which is not a multiple of the element size (" + std::to_string(element) +
                 " bytes, " + dtype_name(static_cast<DType>(dtype)) + ")");
}

char* copy_text(const std::string& text) {
  char* const copy = strdup(text.c_str());
  if (!copy) throw std::bad_alloc();
  return copy;
}

}  // namespace dsgd::capi

// Named objects, given to all workers.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "capi/src/call.h"
#include "capi/src/session.h"
#include "core/objects/objects.h"

struct dsgd_object : dsgd::capi::HandleOf<dsgd_object> {
  static constexpr const char* kName = "dsgd_object";
  explicit dsgd_object(dsgd::SharedObject object) : core(std::move(object)) {}

  const dsgd::SharedObject core;
};

using dsgd::CallOptions;
using dsgd::Code;
using dsgd::Session;
using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::guard_open;
using dsgd::capi::is_handle;
using dsgd::capi::run_operation;

extern "C" {

int32_t dsgd_object_put(dsgd_session* session, const char* name, const void* data, size_t nbytes,
                        int32_t dtype, const int64_t* shape, size_t ndim, const dsgd_op_options* options,
                        dsgd_op** op, dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.not_empty(name, "name"));
    if (nbytes > 0) DSGD_RETURN_IF_ERROR(call.not_null(data, "data"));
    if (ndim > 0) DSGD_RETURN_IF_ERROR(call.not_null(shape, "shape"));
    DSGD_RETURN_IF_ERROR(call.on_host(data, nbytes, "data"));
    return run_operation(call, session, options, op, [&](Session::Mode mode, const CallOptions& given) {
      return session->core->object_put(name, std::span(static_cast<const uint8_t*>(data), nbytes), dtype,
                                       std::span(shape, ndim), mode, given);
    });
  });
}

int32_t dsgd_object_get(dsgd_session* session, const char* name, const dsgd_op_options* options,
                        dsgd_object** object, dsgd_op** op, dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.not_empty(name, "name"));
    if (op && object)
      return call.invalid("'object' and 'op' are both given; with an op, dsgd_op_object gives the object");
    if (!op) DSGD_RETURN_IF_ERROR(call.not_null(object, "object"));
    std::shared_ptr<dsgd::Operation> operation;
    DSGD_RETURN_IF_ERROR(
        run_operation(call, session, options, op, [&](Session::Mode mode, const CallOptions& given) {
          auto begun = session->core->object_get(name, mode, given);
          if (begun.ok()) operation = begun.value();
          return begun;
        }));
    if (object) *object = new dsgd_object(operation->object());
    return {};
  });
}

int32_t dsgd_op_object(const dsgd_op* op, dsgd_object** object, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(op));
    DSGD_RETURN_IF_ERROR(call.not_null(object, "object"));
    const dsgd::Operation& operation = *op->operation;
    if (operation.name() != dsgd::Objects::kGet)
      return call.invalid("the op is " + operation.name() +
                          ", not a dsgd_object_get; only that has an object");
    if (!operation.done())
      return call.fail(Code::kState, operation.name() + " has not ended yet; wait for the op first");
    if (!operation.status().ok()) return operation.status();
    *object = new dsgd_object(operation.object());
    return {};
  });
}

int32_t dsgd_object_delete(dsgd_session* session, const char* name, const dsgd_op_options* options,
                           dsgd_op** op, dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.not_empty(name, "name"));
    return run_operation(call, session, options, op, [&](Session::Mode mode, const CallOptions& given) {
      return session->core->object_delete(name, mode, given);
    });
  });
}

const void* dsgd_object_data(const dsgd_object* object) {
  return is_handle(object) ? object->core->bytes.data() : nullptr;
}
size_t dsgd_object_nbytes(const dsgd_object* object) {
  return is_handle(object) ? object->core->bytes.size() : 0;
}
int32_t dsgd_object_dtype(const dsgd_object* object) {
  return is_handle(object) ? object->core->dtype : dsgd::Object::kNoType;
}
size_t dsgd_object_ndim(const dsgd_object* object) {
  return is_handle(object) ? object->core->shape.size() : 0;
}
const int64_t* dsgd_object_shape(const dsgd_object* object) {
  return is_handle(object) ? object->core->shape.data() : nullptr;
}
void dsgd_object_free(dsgd_object* object) { dsgd::capi::free_handle(object); }

}  // extern "C"

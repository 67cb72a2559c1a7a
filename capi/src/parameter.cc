// Parameters, replicas and their buffers.
#include <memory>
#include <span>
#include <string>

#include "capi/src/call.h"
#include "capi/src/memory.h"
#include "capi/src/session.h"

using dsgd::Code;
using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::guard_open;
using dsgd::capi::is_handle;

namespace dsgd::capi {

Result<std::shared_ptr<TensorMemory>> allocated_memory(const Call& call, dsgd_replica* replica,
                                                       dsgd_parameter* parameter) {
  if (auto memory = replica->session->core->allocated(replica->core, parameter->core)) return memory;
  return call.fail(Code::kState, "parameter '" + parameter->core->name +
                                     "' has no buffers of dsgd_alloc in replica " +
                                     std::to_string(replica->core->index) + "; call dsgd_alloc first");
}

}  // namespace dsgd::capi

extern "C" {

int32_t dsgd_parameter_add(dsgd_session* session, const char* name, int32_t dtype, const int64_t* shape,
                           size_t ndim, uint32_t flags, dsgd_parameter** parameter, dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.not_empty(name, "name"));
    DSGD_RETURN_IF_ERROR(call.dtype(dtype));
    if (ndim > 0) DSGD_RETURN_IF_ERROR(call.not_null(shape, "shape"));
    DSGD_RETURN_IF_ERROR(call.flags(flags, DSGD_UNTRAINED, "dsgd_parameter_flag"));
    auto added = session->core->add_parameter(name, static_cast<dsgd::DType>(dtype), std::span(shape, ndim),
                                              (flags & DSGD_UNTRAINED) == 0);
    if (!added.ok()) return added.status();
    auto handle = std::make_unique<dsgd_parameter>(session, added.value());
    std::lock_guard lock(session->mutex);
    session->parameters.push_back(std::move(handle));
    if (parameter) *parameter = session->parameters.back().get();
    return {};
  });
}

int32_t dsgd_parameter_set(dsgd_parameter* parameter, const char* options, dsgd_error** error) {
  return guard_open(__func__, error, parameter, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.not_null(options, "options"));
    return parameter->session->core->set_parameter(parameter->core, options);
  });
}

const char* dsgd_parameter_name(const dsgd_parameter* parameter) {
  return is_handle(parameter) ? parameter->core->name.c_str() : "";
}

int32_t dsgd_replica_add(dsgd_session* session, const char* device, dsgd_replica** replica,
                         dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    if (device) DSGD_RETURN_IF_ERROR(call.not_empty(device, "device"));
    auto added = session->core->add_replica(device ? device : "");
    if (!added.ok()) return added.status();
    auto handle = std::make_unique<dsgd_replica>(session, added.value());
    std::lock_guard lock(session->mutex);
    session->replicas.push_back(std::move(handle));
    if (replica) *replica = session->replicas.back().get();
    return {};
  });
}

const char* dsgd_replica_device(const dsgd_replica* replica) {
  return is_handle(replica) ? replica->core->device->name().c_str() : "";
}

int32_t dsgd_replica_weight(dsgd_replica* replica, double weight, dsgd_error** error) {
  return guard_open(__func__, error, replica, [&](const Call&) -> Status {
    return replica->session->core->set_replica_weight(replica->core, weight);
  });
}

int32_t dsgd_bind(dsgd_replica* replica, dsgd_parameter* parameter, void* value, size_t value_nbytes,
                  void* gradient, size_t gradient_nbytes, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.open(replica, parameter));
    if (parameter->core->nbytes() > 0) {
      DSGD_RETURN_IF_ERROR(call.not_null(value, "value"));
      if (parameter->core->trained && !gradient) {
        return call.invalid("parameter '" + parameter->core->name +
                            "' is trained and needs a buffer for its gradient; give one, or add the "
                            "parameter as untrained");
      }
    }
    return replica->session->core->bind(replica->core, parameter->core, value, value_nbytes, gradient,
                                        gradient_nbytes, {});
  });
}

int32_t dsgd_alloc(dsgd_replica* replica, dsgd_parameter* parameter, void** value, void** gradient,
                   dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.open(replica, parameter));
    DSGD_RETURN_IF_ERROR(call.not_null(value, "value"));
    if (parameter->core->trained && !gradient)
      return call.invalid("parameter '" + parameter->core->name +
                          "' is trained and gets a buffer for its gradient; ask for 'gradient', too");
    auto memory = replica->session->core->alloc(replica->core, parameter->core);
    if (!memory.ok()) return memory.status();
    *value = memory.value()->value;
    if (gradient) *gradient = memory.value()->gradient;
    return {};
  });
}

int32_t dsgd_memory_get(dsgd_replica* replica, dsgd_parameter* parameter, dsgd_memory** memory,
                        dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.open(replica, parameter));
    DSGD_RETURN_IF_ERROR(call.not_null(memory, "memory"));
    auto tensor = dsgd::capi::allocated_memory(call, replica, parameter);
    if (!tensor.ok()) return tensor.status();
    *memory = new dsgd_memory(std::move(tensor).value());
    return {};
  });
}

void* dsgd_memory_value(const dsgd_memory* memory) {
  return is_handle(memory) ? memory->tensor->value : nullptr;
}
void* dsgd_memory_gradient(const dsgd_memory* memory) {
  return is_handle(memory) ? memory->tensor->gradient : nullptr;
}
size_t dsgd_memory_nbytes(const dsgd_memory* memory) {
  return is_handle(memory) ? memory->tensor->nbytes : 0;
}
void dsgd_memory_free(dsgd_memory* memory) { dsgd::capi::free_handle(memory); }

}  // extern "C"

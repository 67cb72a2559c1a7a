// Tensors of other frameworks in, and dsgd's own buffers out.
#include "capi/src/dlpack.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "capi/src/call.h"
#include "capi/src/memory.h"
#include "capi/src/session.h"
#include "core/base/text.h"

namespace dsgd::capi {
namespace {

DLDataType dlpack_type(DType dtype) {
  const auto bits = static_cast<uint8_t>(dtype_size(dtype) * 8);
  if (dtype == DType::kBfloat16) return {kDlBfloat, bits, 1};
  if (is_floating(dtype)) return {kDlFloat, bits, 1};
  return {is_unsigned(dtype) ? kDlUInt : kDlInt, bits, 1};
}

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

bool is_contiguous(const DLTensor& tensor, const Parameter& parameter) {
  if (!tensor.strides || parameter.count == 0) return true;
  const auto strides = row_major_strides(parameter.shape);
  for (size_t i = 0; i < strides.size(); ++i)
    if (parameter.shape[i] != 1 && tensor.strides[i] != strides[i]) return false;
  return true;
}

DLDevice dlpack_device(const device::Device& device) {
  return device.is_host() ? DLDevice{kDlCpu, 0} : DLDevice{kDlCuda, device.index()};
}

bool is_on(const DLDevice& tensor, const device::Device& device) {
  if (device.is_host()) return tensor.device_type == kDlCpu || tensor.device_type == kDlCudaHost;
  return tensor.device_type == kDlCudaManaged ||
         (tensor.device_type == kDlCuda && tensor.device_id == device.index());
}

std::string device_text(const DLDevice& device) {
  return std::string("(").append(std::to_string(device.device_type)) + ", " +
         std::to_string(device.device_id) + ")";
}

// Checks that the host's tensor can be the value or gradient (`what`) of `parameter` on this device.
Status check_tensor(const Call& call, const DLManagedTensorVersioned& managed, const Parameter& parameter,
                    const device::Device& device, const std::string& what) {
  const std::string name = what + " tensor of parameter '" + parameter.name + "'";
  if (managed.version.major != DLPACK_MAJOR)
    return call.fail(Code::kUnsupported, name + " is of DLPack " + std::to_string(managed.version.major) +
                                             "." + std::to_string(managed.version.minor) +
                                             "; export it as version 1");
  const DLTensor& tensor = managed.dl_tensor;
  if (!is_on(tensor.device, device))
    return call.invalid(name + " is on DLPack device " + device_text(tensor.device) + "; the replica is on " +
                        device.name() + ", which is " + device_text(dlpack_device(device)));
  const DLDataType wanted = dlpack_type(parameter.dtype);
  if (tensor.dtype.code != wanted.code || tensor.dtype.bits != wanted.bits || tensor.dtype.lanes != 1)
    return call.invalid(name + " has DLPack type code " + std::to_string(tensor.dtype.code) + " of " +
                        std::to_string(tensor.dtype.bits) + " bits and " +
                        std::to_string(tensor.dtype.lanes) + " lanes; the parameter is " +
                        dtype_name(parameter.dtype));
  const bool same_shape = tensor.ndim >= 0 && static_cast<size_t>(tensor.ndim) == parameter.shape.size() &&
                          std::equal(parameter.shape.begin(), parameter.shape.end(), tensor.shape);
  if (!same_shape)
    return call.invalid(
        name + " has shape " +
        (tensor.ndim >= 0 ? shape_text({tensor.shape, static_cast<size_t>(tensor.ndim)}) : "?") +
        "; the parameter has " + shape_text(parameter.shape));
  if (!is_contiguous(tensor, parameter))
    return call.invalid(name + " is not contiguous in row-major order; make it so before binding");
  if (parameter.nbytes() > 0 && !tensor.data) return call.invalid(name + " has no data");
  return {};
}

void* tensor_data(const DLManagedTensorVersioned* managed) {
  if (!managed || !managed->dl_tensor.data) return nullptr;
  return static_cast<std::byte*>(managed->dl_tensor.data) + managed->dl_tensor.byte_offset;
}

void delete_tensor(DLManagedTensorVersioned* managed) {
  if (managed && managed->deleter) managed->deleter(managed);
}

// A tensor over memory of dsgd_alloc, with all that it points to.
struct ExportedTensor {
  DLManagedTensorVersioned managed;
  std::shared_ptr<TensorMemory> memory;
  std::vector<int64_t> shape, strides;
};

std::unique_ptr<ExportedTensor> export_tensor(std::shared_ptr<TensorMemory> memory, void* data,
                                              const Parameter& parameter, const device::Device& device) {
  auto exported = std::make_unique<ExportedTensor>();
  exported->memory = std::move(memory);
  exported->shape = parameter.shape;
  exported->strides = row_major_strides(parameter.shape);
  exported->managed = {
      .version = {DLPACK_MAJOR, DLPACK_MINOR},
      .manager_ctx = exported.get(),
      .deleter =
          [](DLManagedTensorVersioned* self) { delete static_cast<ExportedTensor*>(self->manager_ctx); },
      .flags = 0,
      .dl_tensor = {.data = data,
                    .device = dlpack_device(device),
                    .ndim = static_cast<int32_t>(parameter.shape.size()),
                    .dtype = dlpack_type(parameter.dtype),
                    .shape = exported->shape.data(),
                    .strides = exported->strides.data(),
                    .byte_offset = 0}};
  return exported;
}

}  // namespace
}  // namespace dsgd::capi

using namespace dsgd;        // NOLINT: the bodies below speak of both namespaces only
using namespace dsgd::capi;  // NOLINT

extern "C" {

int32_t dsgd_bind_dlpack(dsgd_replica* replica, dsgd_parameter* parameter,
                         struct DLManagedTensorVersioned* value, struct DLManagedTensorVersioned* gradient,
                         dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.open(replica, parameter));
    DSGD_RETURN_IF_ERROR(call.not_null(value, "value"));
    const Parameter& core = *parameter->core;
    const device::Device& device = *replica->core->device;
    if (core.trained) DSGD_RETURN_IF_ERROR(call.not_null(gradient, "gradient"));
    if (!core.trained && gradient)
      return call.invalid("parameter '" + core.name + "' is untrained and has no gradient; give none");
    if (value == gradient) return call.invalid("'value' and 'gradient' are the same tensor");
    DSGD_RETURN_IF_ERROR(check_tensor(call, *value, core, device, "value"));
    if (value->flags & DLPACK_READ_ONLY)
      return call.invalid("the value tensor of parameter '" + core.name +
                          "' is read-only; steps write new values into it");
    if (gradient) DSGD_RETURN_IF_ERROR(check_tensor(call, *gradient, core, device, "gradient"));
    const auto release = [value, gradient] {
      delete_tensor(value);
      delete_tensor(gradient);
    };
    return replica->session->core->bind(replica->core, parameter->core, tensor_data(value), core.nbytes(),
                                        tensor_data(gradient), gradient ? core.nbytes() : 0, release,
                                        gradient && (gradient->flags & DLPACK_READ_ONLY));
  });
}

int32_t dsgd_export_dlpack(dsgd_replica* replica, dsgd_parameter* parameter,
                           struct DLManagedTensorVersioned** value,
                           struct DLManagedTensorVersioned** gradient, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.open(replica, parameter));
    DSGD_RETURN_IF_ERROR(call.not_null(value, "value"));
    const Parameter& core = *parameter->core;
    if (gradient && !core.trained)
      return call.invalid("parameter '" + core.name +
                          "' is untrained and has no gradient; ask for its value only");
    auto memory = allocated_memory(call, replica, parameter);
    if (!memory.ok()) return memory.status();
    auto values = export_tensor(memory.value(), memory.value()->value, core, *replica->core->device);
    if (gradient)
      *gradient = &export_tensor(memory.value(), memory.value()->gradient, core, *replica->core->device)
                       .release()
                       ->managed;
    *value = &values.release()->managed;
    return {};
  });
}

}  // extern "C"

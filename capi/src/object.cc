// Named blobs, given to all workers.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "capi/src/call.h"
#include "capi/src/session.h"

struct dsgd_object : dsgd::capi::Handle {
  static constexpr uint64_t kTag = dsgd::capi::tag_of("object  ");
  static constexpr const char* kName = "dsgd_object";
  explicit dsgd_object(std::shared_ptr<const std::vector<uint8_t>> bytes)
      : Handle(kTag), bytes(std::move(bytes)) {}

  const std::shared_ptr<const std::vector<uint8_t>> bytes;
};

namespace {
constexpr size_t kLargestObject = size_t{1} << 30;
}

using dsgd::Code;
using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::is_handle;

extern "C" {

int32_t dsgd_object_put(dsgd_session* session, const char* name, const void* data, size_t nbytes,
                        dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.open(session));
    DSGD_RETURN_IF_ERROR(call.named(name, "name"));
    if (nbytes > 0) DSGD_RETURN_IF_ERROR(call.given(data, "data"));
    if (nbytes > kLargestObject)
      return call.fail(Code::kLimit, "object '" + std::string(name) + "' has " + std::to_string(nbytes) +
                                         " bytes; objects have at most 1 GiB, share a file instead");
    DSGD_RETURN_IF_ERROR(call.on_host(data, nbytes, "data"));
    return session->core->object_put(name, std::span(static_cast<const uint8_t*>(data), nbytes));
  });
}

int32_t dsgd_object_get(dsgd_session* session, const char* name, int32_t timeout_ms, dsgd_object** object,
                        dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.open(session));
    DSGD_RETURN_IF_ERROR(call.named(name, "name"));
    DSGD_RETURN_IF_ERROR(call.wait_time(timeout_ms));
    DSGD_RETURN_IF_ERROR(call.given(object, "object"));
    auto bytes = session->core->object_get(name, std::chrono::milliseconds(timeout_ms));
    if (!bytes.ok()) return bytes.status();
    *object = new dsgd_object(std::move(bytes).value());
    return {};
  });
}

const void* dsgd_object_data(const dsgd_object* object) {
  return is_handle(object) ? object->bytes->data() : nullptr;
}
size_t dsgd_object_nbytes(const dsgd_object* object) { return is_handle(object) ? object->bytes->size() : 0; }
void dsgd_object_free(dsgd_object* object) { dsgd::capi::free_handle(object); }

}  // extern "C"

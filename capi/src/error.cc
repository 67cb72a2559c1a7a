#include "capi/src/error.h"

namespace dsgd::capi {
namespace {

// Made when the library is loaded, since later there may be no memory for it. Shared, and never freed.
dsgd_error& no_memory_error() {
  static dsgd_error* const error = [] {
    auto* made = new dsgd_error;
    made->code = DSGD_ERR_NO_MEMORY;
    made->message = "out of memory; free some, or use a smaller model, buckets or receive_memory";
    return made;
  }();
  return *error;
}
[[maybe_unused]] const dsgd_error& kMadeAtLoad = no_memory_error();

const dsgd_error* readable(const dsgd_error* error) { return is_handle(error) ? error : nullptr; }

}  // namespace

int32_t give_no_memory(dsgd_error** error) noexcept {
  if (error) *error = &no_memory_error();
  return DSGD_ERR_NO_MEMORY;
}

int32_t give_error(const Status& status, dsgd_error** error) noexcept {
  if (!error) return static_cast<int32_t>(status.code());
  try {
    auto* made = new dsgd_error;
    made->code = static_cast<int32_t>(status.code());
    made->rank = status.rank();
    made->host = status.host();
    made->operation = status.operation();
    made->parameter = status.parameter();
    made->message = status.message();
    *error = made;
  } catch (...) {  // only memory can be missing here; the code is still the true one
    give_no_memory(error);
  }
  return static_cast<int32_t>(status.code());
}

}  // namespace dsgd::capi

using dsgd::capi::no_memory_error;
using dsgd::capi::readable;

extern "C" {

int32_t dsgd_error_code(const dsgd_error* error) { return readable(error) ? error->code : DSGD_OK; }
int32_t dsgd_error_rank(const dsgd_error* error) { return readable(error) ? error->rank : -1; }
const char* dsgd_error_host(const dsgd_error* error) { return readable(error) ? error->host.c_str() : ""; }
const char* dsgd_error_operation(const dsgd_error* error) {
  return readable(error) ? error->operation.c_str() : "";
}
const char* dsgd_error_parameter(const dsgd_error* error) {
  return readable(error) ? error->parameter.c_str() : "";
}
const char* dsgd_error_message(const dsgd_error* error) {
  return readable(error) ? error->message.c_str() : "";
}
void dsgd_error_free(dsgd_error* error) {
  if (error != &no_memory_error()) dsgd::capi::free_handle(error);
}

}  // extern "C"

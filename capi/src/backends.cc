#include "capi/src/backends.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <string>
#include <string_view>

#include "core/device/device.h"

namespace dsgd::capi {
namespace {

constexpr const char* kCudaLibrary = "libdsgd_cuda.so." DSGD_SOVERSION;

std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load_cuda), &info) == 0 || !info.dli_fname) return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

// Whether the process has loaded CUDA's driver. Looked up in the list of libraries, when there are new ones:
// a dlopen() that fails would leave its error, and the memory that it stands in, with the host's thread.
bool has_driver() {
  static std::atomic<bool> seen{false};
  static std::atomic<unsigned long long> looked{0};  // how many libraries had been loaded when there was none
  if (seen) return true;
  unsigned long long loaded = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<unsigned long long*>(out) = info->dlpi_adds;
        if (info->dlpi_adds == looked) return 1;
        const std::string_view path = info->dlpi_name;
        if (path.substr(path.rfind('/') + 1).starts_with("libcuda.so")) seen = true;
        return int(seen);
      },
      &loaded);
  if (!seen) looked = loaded;
  return seen;
}

}  // namespace

Result<const device::Backend*> load_cuda() {
  static std::atomic<const device::Backend*> loaded{nullptr};
  if (const device::Backend* backend = loaded.load()) return backend;
  std::string why;
  for (const std::string& folder : {own_folder(), std::string()}) {
    void* library = dlopen((folder + kCudaLibrary).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      if (why.empty()) why = dlerror();
      continue;
    }
    const auto table = reinterpret_cast<const device::Backend* (*)()>(dlsym(library, "dsgd_cuda_backend"));
    if (!table)
      return Status(Code::kUnsupported, folder + kCudaLibrary + " is no plug-in of dsgd: " + dlerror());
    loaded = table();
    return loaded.load();
  }
  return Status(Code::kUnsupported, "the plug-in for CUDA devices cannot be loaded: " + why +
                                        "; build dsgd with -DDSGD_CUDA=ON, which installs " + kCudaLibrary +
                                        " beside libdsgd.so, or use the device cpu")
      .with_parameter("devices");
}

Status check_host_memory(const void* data, size_t nbytes) {
  if (!has_driver()) return {};  // there can be no memory of a GPU
  auto backend = load_cuda();
  return backend.ok() ? device::Device::check_host_memory(*backend.value(), data, nbytes) : Status();
}

}  // namespace dsgd::capi

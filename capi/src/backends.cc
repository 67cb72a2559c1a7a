#include "capi/src/backends.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

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

// Returns whether the process has loaded CUDA's driver. Searches the list of loaded libraries, again only
// when it has grown. A failing dlopen() would leave an error text, and its memory, in the host's thread.
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
    // A jar's own folder is a temporary one, which means nothing to the user.
    if (!folder.empty() && access((folder + kCudaLibrary).c_str(), F_OK) != 0) continue;
    void* library = dlopen((folder + kCudaLibrary).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      if (why.empty()) why = dlerror();
      continue;
    }
    const auto table = reinterpret_cast<const device::Backend* (*)()>(dlsym(library, "dsgd_cuda_backend"));
    if (!table)
      return Status(Code::kUnsupported,
                    folder + kCudaLibrary + " is not a dsgd plug-in: " + dlerror() + "; reinstall dsgd");
    loaded = table();
    return loaded.load();
  }
  return Status(Code::kUnsupported, "the plug-in for CUDA devices cannot be loaded: " + why +
                                        "; build dsgd with -DDSGD_CUDA=ON, which installs " + kCudaLibrary +
                                        " beside libdsgd.so, or use the device cpu")
      .with_parameter("devices");
}

Result<std::string> locate(const void* data, size_t nbytes) {
  if (!has_driver()) return std::string();  // without a driver no buffer is GPU memory
  auto backend = load_cuda();
  return backend.ok() ? device::Device::locate(*backend.value(), data, nbytes)
                      : Result<std::string>(std::string());
}

}  // namespace dsgd::capi

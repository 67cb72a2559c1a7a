// Real GPUs, through the plug-in as it is installed.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "tests/unit/device/gpu.h"

namespace dsgd::device {

const Backend& cuda_backend() {
  static const Backend* const backend = [] {
    const char* path = std::getenv("DSGD_CUDA_PLUGIN");
    void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    void* table = library ? dlsym(library, "dsgd_cuda_backend") : nullptr;
    if (!table) {
      std::fprintf(stderr, "DSGD_CUDA_PLUGIN does not name the plug-in: %s\n",
                   path ? dlerror() : "it is not set");
      std::exit(2);
    }
    return reinterpret_cast<const Backend* (*)()>(table)();
  }();
  return *backend;
}

int gpus() {
  int32_t count = 0;
  Message message{};
  if (cuda_backend().device_count(&count, &message) != 0) {
    std::fprintf(stderr, "%s\n", message.text);
    return 0;
  }
  return count;
}

}  // namespace dsgd::device

// A library of the system whose functions are looked up at run time. It is never closed: threads may be
// inside it.
#pragma once

#include <dlfcn.h>

#include <string>

#include "transport/base/status.h"

namespace dsgd::transport::uv {

class LoadedLibrary {
 public:
  explicit LoadedLibrary(const std::string& file)
      : file_(file), library_(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) fault_ = std::string("cannot be loaded: ") + dlerror();
  }

  template <typename Function>
  void find(Function& function, const std::string& name) {
    if (library_) function = reinterpret_cast<Function>(dlsym(library_, name.c_str()));
    if (!function && fault_.empty()) fault_ = "has no function '" + name + "'";
  }

  // An error if the library, or one of the functions, is missing. `needed`: "TLS needs OpenSSL 3".
  Status status(const std::string& needed, const std::string& remedy) const {
    if (fault_.empty()) return {};
    return Status(Code::kUnsupported, needed + ", and " + file_ + " " + fault_ + "; " + remedy);
  }

 private:
  const std::string file_;
  void* const library_;
  std::string fault_;
};

}  // namespace dsgd::transport::uv

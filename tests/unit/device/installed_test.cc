// The plug-in as it is installed, with NVIDIA's own runtime: it can be loaded on any machine, and says what the machine lacks.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/device/device.h"

namespace dsgd::device {
namespace {

TEST(InstalledPlugin, LoadsEverywhereAndSaysWhatIsMissing) {
  void* library = dlopen(DSGD_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  auto* backend = reinterpret_cast<const Backend* (*)()>(dlsym(library, "dsgd_cuda_backend"));
  ASSERT_NE(backend, nullptr) << dlerror();
  ASSERT_EQ(backend()->version, kBackendVersion);
  auto device = Device::open(*backend(), 0);
  if (device.ok()) {
    EXPECT_EQ(device.value()->name(), "cuda:0");
  } else {
    EXPECT_THAT(device.status().message(), testing::AnyOf(testing::HasSubstr("no NVIDIA driver on this machine"),
                                                          testing::HasSubstr("driver is too old"),
                                                          testing::HasSubstr("this machine has none")));
  }
  auto absurd = Device::open(*backend(), 1000);
  EXPECT_FALSE(absurd.ok());
}

}  // namespace
}  // namespace dsgd::device

// The plug-in as it is installed, with NVIDIA's own runtime and NCCL: it can be loaded on any machine, and
// says what the machine lacks.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "core/device/device.h"

namespace dsgd::device {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

const Backend& installed() {
  static const Backend* const backend = [] {
    void* library = dlopen(DSGD_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library, nullptr) << dlerror();
    return reinterpret_cast<const Backend* (*)()>(dlsym(library, "dsgd_cuda_backend"))();
  }();
  return *backend;
}

TEST(InstalledPlugin, LoadsEverywhereAndSaysWhatIsMissing) {
  ASSERT_EQ(installed().version, kBackendVersion);
  auto device = Device::open(installed(), 0);
  if (device.ok()) {
    EXPECT_EQ(device.value()->name(), "cuda:0");
  } else {
    EXPECT_THAT(device.status().message(),
                AnyOf(HasSubstr("no NVIDIA driver on this machine"), HasSubstr("driver is too old"),
                      HasSubstr("this process can use none")));
  }
  auto absurd = Device::open(installed(), 1000);
  EXPECT_FALSE(absurd.ok());
}

// In this order, since what is found once is kept.
TEST(InstalledPlugin, FindsNcclOrSaysWhyNot) {
  int32_t version = 0;
  Message message{};
  EXPECT_EQ(installed().communicator_load("/nowhere/libnccl.so.2", &version, &message),
            static_cast<int32_t>(Code::kUnsupported));
  EXPECT_THAT(message.text, HasSubstr("`nccl_library` = /nowhere/libnccl.so.2 cannot be loaded"));
  EXPECT_EQ(installed().communicator_load(DSGD_CUDA_LIBRARY, &version, &message),
            static_cast<int32_t>(Code::kUnsupported));
  EXPECT_THAT(message.text, HasSubstr("has no ncclGetVersion"));
  const std::string there = DSGD_NCCL_LIBRARY;
  if (there.empty()) GTEST_SKIP() << "without NCCL's wheel";
  ASSERT_EQ(installed().communicator_load(there.c_str(), &version, &message), 0) << message.text;
  EXPECT_GE(version, 22809);
  EXPECT_THAT(message.text, testing::AllOf(HasSubstr("NCCL 2."), HasSubstr(there),
                                           HasSubstr("which `nccl_library` = "), HasSubstr(" names")));
  CommunicatorId one{}, other{};
  EXPECT_EQ(installed().communicator_id(&one, &message), 0) << message.text;
  EXPECT_EQ(installed().communicator_id(&other, &message), 0) << message.text;
  EXPECT_NE(std::memcmp(&one, &other, sizeof one), 0);
  ASSERT_EQ(installed().communicator_load("", &version, &message), 0) << message.text;
  EXPECT_THAT(message.text, HasSubstr(there));
}

}  // namespace
}  // namespace dsgd::device

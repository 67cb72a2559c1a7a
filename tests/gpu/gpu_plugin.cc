// Real GPUs, through the plug-in as it is installed.
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tests/unit/device/gpu.h"

namespace dsgd::device {
namespace {

// Ends the process if one test takes longer than DSGD_TEST_SECONDS (120; 0: no limit): a stream that waits
// for ever holds up whatever synchronizes with the GPU.
class Watchdog final : public testing::EmptyTestEventListener {
 public:
  Watchdog() {
    if (const char* given = std::getenv("DSGD_TEST_SECONDS")) {
      char* end = nullptr;
      seconds_ = static_cast<unsigned>(std::strtoul(given, &end, 10));
      if (end == given || *end) {
        std::fprintf(stderr, "DSGD_TEST_SECONDS is '%s'; it has to be a number of seconds\n", given);
        std::exit(2);
      }
    }
    std::signal(SIGALRM, [](int) {
      constexpr char kText[] = "this test took longer than DSGD_TEST_SECONDS\n";
      (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
      _exit(1);
    });
  }

 private:
  void OnTestStart(const testing::TestInfo&) override { alarm(seconds_); }
  void OnTestEnd(const testing::TestInfo&) override { alarm(0); }
  unsigned seconds_ = 120;
};
[[maybe_unused]] const auto* const watchdog = [] {
  auto* const made = new Watchdog;
  testing::UnitTest::GetInstance()->listeners().Append(made);
  return made;
}();

}  // namespace

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

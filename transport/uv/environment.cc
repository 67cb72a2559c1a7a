#include "transport/uv/environment.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "transport/uv/network.h"
#include "transport/uv/notifier.h"
#include "transport/uv/origin.h"

namespace dsgd::transport {

namespace {

class UvEnvironment final : public Environment {
 public:
  Result<std::unique_ptr<Network>> new_network(const std::string& name, size_t receive_memory) override {
    return uv::UvNetwork::make(name, receive_memory);
  }
  Result<std::unique_ptr<Notifier>> new_notifier() override { return uv::make_notifier(); }
  std::string host_name() override {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return name;
  }
  std::string machine() override {
    std::string id;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
    return id.empty() ? host_name() : id;
  }
  int64_t process_id() override { return getpid(); }
  int processors() override {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  }
  int64_t free_descriptors() override {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return INT64_MAX;
    std::error_code error;
    std::filesystem::directory_iterator open("/proc/self/fd", error);
    if (error) return INT64_MAX;
    const int64_t listing = 1;  // the iterator's own
    return static_cast<int64_t>(limit.rlim_cur) - std::distance(begin(open), end(open)) + listing;
  }
  Code life() const noexcept override {
    if (origin_.is_forked()) return Code::kForked;
    return uv::process_exits() ? Code::kClosed : Code::kOk;
  }

 private:
  const uv::Origin origin_{};
};

}  // namespace

std::unique_ptr<Environment> make_uv_environment() { return std::make_unique<UvEnvironment>(); }

}  // namespace dsgd::transport

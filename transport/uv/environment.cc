#include "transport/uv/environment.h"

#include <sched.h>
#include <unistd.h>

#include <fstream>

#include "transport/uv/descriptors.h"
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
  int64_t free_descriptors() override { return uv::free_descriptors(); }
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

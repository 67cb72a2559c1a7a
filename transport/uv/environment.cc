#include "transport/uv/environment.h"

#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "transport/uv/descriptors.h"
#include "transport/uv/files.h"
#include "transport/uv/guard.h"
#include "transport/uv/http.h"
#include "transport/uv/network.h"
#include "transport/uv/notifier.h"
#include "transport/uv/origin.h"

namespace dsgd::transport {

namespace {

class UvEnvironment final : public Environment {
 public:
  ~UvEnvironment() override {
    for (std::thread& thread : threads_) thread.join();
  }
  Result<std::unique_ptr<Network>> new_network(const std::string& name, size_t receive_memory) override {
    return uv::UvNetwork::make(name, receive_memory, resolve_limit_, tls_);
  }
  Status use_tls(const TlsFiles& files, std::function<void(const std::string&)> warn) override {
    return uv::TlsContext::load(files, std::move(warn)).into(&tls_);
  }
  Result<std::unique_ptr<Notifier>> new_notifier() override { return uv::make_notifier(); }
  Status start_thread(const std::string& name, std::function<void()> program) override {
    std::lock_guard lock(mutex_);
    threads_.reserve(threads_.size() + 1);
    auto thread = uv::start_thread(name, std::move(program));
    if (thread.ok()) threads_.push_back(std::move(thread).value());
    return thread.status();
  }
  Result<std::shared_ptr<Files>> new_files() override { return uv::make_files(); }
  Result<std::unique_ptr<Http>> new_http(std::optional<TlsFiles> tls) override {
    return uv::make_http(std::move(tls));
  }
  void limit_resolving(Time until) override { resolve_limit_->set(until); }
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
  const std::shared_ptr<uv::ResolveLimit> resolve_limit_ = std::make_shared<uv::ResolveLimit>();
  std::shared_ptr<uv::TlsContext> tls_;  // null: none
  std::mutex mutex_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Environment> make_uv_environment() { return std::make_unique<UvEnvironment>(); }

}  // namespace dsgd::transport

// The conformance suite over libuv: real sockets, threads and time.
#include <unistd.h>

#include <optional>

#include "conformance.h"
#include "tests/unit/certificates.h"
#include "transport/uv/environment.h"

namespace dsgd::transport {
namespace {

class UvTestWorld final : public TestWorld {
 public:
  explicit UvTestWorld(std::string address, bool tls = false) : address_(std::move(address)) {
    if (!tls) return;
    authority_.emplace();
    for (auto& environment : environments_) {
      const Status status = environment->use_tls(authority_->issue("worker"), {});
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  ~UvTestWorld() override {
    if (!unix_path_.empty()) unlink(unix_path_.c_str());
  }
  Environment& environment(int which) override { return *environments_[which]; }
  std::string listen_address() override { return address_; }
  std::string unix_path() override {
    static int counter = 0;
    unix_path_ = "/tmp/dsgd-conformance-" + std::to_string(getpid()) + "-" + std::to_string(++counter);
    return unix_path_;
  }

 private:
  const std::string address_;
  std::string unix_path_;
  std::optional<TestAuthority> authority_;
  std::unique_ptr<Environment> environments_[2] = {make_uv_environment(), make_uv_environment()};
};

INSTANTIATE_TEST_SUITE_P(
    Uv, Conformance,
    testing::Values(TransportUnderTest{"IPv4", [] { return std::make_unique<UvTestWorld>("127.0.0.1:0"); }},
                    TransportUnderTest{"IPv6", [] { return std::make_unique<UvTestWorld>("[::1]:0"); }},
                    TransportUnderTest{"Tls",
                                       [] { return std::make_unique<UvTestWorld>("127.0.0.1:0", true); }}),
    name_of);

}  // namespace
}  // namespace dsgd::transport

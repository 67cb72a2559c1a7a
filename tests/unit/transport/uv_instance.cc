// The conformance suite over libuv: real sockets, threads and time.
#include <unistd.h>

#include "conformance.h"
#include "transport/uv/environment.h"

namespace dsgd::transport {
namespace {

class UvTestWorld final : public TestWorld {
 public:
  explicit UvTestWorld(std::string address) : address_(std::move(address)) {}
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
  std::unique_ptr<Environment> environments_[2] = {make_uv_environment(), make_uv_environment()};
};

INSTANTIATE_TEST_SUITE_P(
    Uv, Conformance,
    testing::Values(TransportUnderTest{"IPv4", [] { return std::make_unique<UvTestWorld>("127.0.0.1:0"); }},
                    TransportUnderTest{"IPv6", [] { return std::make_unique<UvTestWorld>("[::1]:0"); }}),
    name_of);

}  // namespace
}  // namespace dsgd::transport

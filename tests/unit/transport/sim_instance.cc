// The conformance suite over the simulated network, with several seeds: each interleaves, delays and cuts
// differently.
#include "conformance.h"
#include "transport/sim/world.h"

namespace dsgd::transport {
namespace {

class SimTestWorld final : public TestWorld {
 public:
  SimTestWorld(uint64_t seed, bool same_host) : world_(seed), same_host_(same_host) {
    for (auto& environment : environments_) {
      const char* host = &environment == environments_ || same_host ? "node0" : "node1";
      environment = world_.environment(world_.start_process(host));
    }
  }
  Environment& environment(int which) override { return *environments_[which]; }
  std::string listen_address() override { return same_host_ ? "127.0.0.1:0" : "node1:0"; }
  std::string unix_path() override { return same_host_ ? "/tmp/socket" : ""; }

 private:
  SimWorld world_;
  const bool same_host_;
  std::unique_ptr<Environment> environments_[2];
};

std::vector<TransportUnderTest> transports() {
  std::vector<TransportUnderTest> all;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const bool same_host = seed % 4 == 0;
    all.push_back({"Seed" + std::to_string(seed) + (same_host ? "OneHost" : ""),
                   [=] { return std::make_unique<SimTestWorld>(seed, same_host); }});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Sim, Conformance, testing::ValuesIn(transports()), name_of);

}  // namespace
}  // namespace dsgd::transport

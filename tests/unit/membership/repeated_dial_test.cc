// Overlapping attempts to connect: one connection is used, and only its end counts.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/repeated_dial.h"
#include "transport/sim/world.h"

namespace dsgd {
namespace {

using namespace std::chrono_literals;
using transport::ClientChannel;

class Channel final : public ClientChannel {
 public:
  explicit Channel(std::string address) : address_(std::move(address)) {}
  std::string address() const override { return address_; }
  void call(transport::Message, transport::Time, std::function<void(Result<transport::Message>)>) override {}
  void send(const transport::BulkHeader&, std::span<const std::byte>,
            std::function<void(const Status&)>) override {}
  void send_small(const transport::BulkHeader&, std::span<const std::byte>,
                  std::function<void(const Status&)>) override {}
  void revoke(uint64_t) override {}
  bool all_sent() const override { return true; }
  void close(bool) override {}

 private:
  const std::string address_;
};

// Keeps each dial, for the test to answer.
class Dials final : public transport::Network {
 public:
  explicit Dials(transport::Network& real) : real_(real) {}
  transport::Loop& loop() override { return real_.loop(); }
  void set_checksum(transport::Checksum) override {}
  void dial(const std::string&, transport::DialOptions options,
            std::function<void(Result<std::unique_ptr<ClientChannel>>)> done) override {
    made.push_back({std::move(options), std::move(done)});
  }
  Result<std::unique_ptr<transport::Listener>> listen(const std::string&, transport::AcceptHandler*,
                                                      const transport::ListenOptions&) override {
    return Status(Code::kUnsupported, "");
  }
  Result<std::string> local_address_for(const std::vector<std::string>&, const std::string&,
                                        std::string*) override {
    return Status(Code::kUnsupported, "");
  }
  Counters counters() const override { return {}; }

  struct Dial {
    transport::DialOptions options;
    std::function<void(Result<std::unique_ptr<ClientChannel>>)> done;
  };
  std::vector<Dial> made;

 private:
  transport::Network& real_;
};

class RepeatedDialTest : public testing::Test {
 protected:
  RepeatedDialTest() {
    dials.loop().post([this] {
      transport::DialOptions options;
      options.deadline = dials.loop().now() + 20s;
      options.closed = [this](const Status& why) { closed.push_back(why.message()); };
      dial = RepeatedDial::start(dials, {"peer:1"}, options,
                                 [this](Result<std::unique_ptr<ClientChannel>> result) {
                                   failed = !result.ok();
                                   if (result.ok()) used = std::move(result).value()->address();
                                 });
    });
    world.run_for(1500ms);
  }
  void connect(size_t attempt) {
    dials.made[attempt].done(
        std::unique_ptr<ClientChannel>(std::make_unique<Channel>(std::to_string(attempt))));
  }
  void close(size_t attempt) {
    dials.made[attempt].options.closed(Status(Code::kIo, std::to_string(attempt)));
  }

  transport::SimWorld world{1};
  const transport::ProcessId process = world.start_process("host");
  std::unique_ptr<transport::Environment> environment = world.environment(process);
  std::unique_ptr<transport::Network> network = std::move(environment->new_network("net", 1 << 20)).value();
  Dials dials{*network};
  std::shared_ptr<RepeatedDial> dial;
  std::string used;
  bool failed = false;
  std::vector<std::string> closed;
};

TEST_F(RepeatedDialTest, TheEndOfAnUnusedConnectionIsNotReported) {
  ASSERT_EQ(dials.made.size(), 2u);
  connect(1);
  close(0);  // by the peer, which has had a message over the other one, before its dial is answered
  connect(0);
  EXPECT_EQ(used, "1");
  EXPECT_TRUE(closed.empty());
  close(1);
  EXPECT_EQ(closed, std::vector<std::string>{"1"});
}

TEST_F(RepeatedDialTest, TheEndOfTheUsedConnectionIsReportedThoughItComesEarly) {
  ASSERT_EQ(dials.made.size(), 2u);
  close(0);
  connect(0);
  EXPECT_EQ(used, "0");
  EXPECT_EQ(closed, std::vector<std::string>{"0"});
}

TEST_F(RepeatedDialTest, TheTimeOfAStopDoesNotCount) {
  world.pause(process);
  world.run_for(30s);
  world.resume(process);
  world.run_for(17s);  // it has 18 s left
  EXPECT_FALSE(failed);
  const size_t made = dials.made.size();
  EXPECT_GT(made, 15u);
  world.run_for(2s);
  EXPECT_TRUE(failed);
  connect(made - 1);
  EXPECT_EQ(used, "") << "it comes too late";
}

}  // namespace
}  // namespace dsgd

// Other processes: a peer that is killed or stopped, and a fork of our own.
#include <signal.h>
#include <sys/wait.h>

#include "support.h"
#include "tests/unit/fork.h"

namespace dsgd::transport::test {
namespace {

class ProcessTest : public NetworkTest {
 protected:
  // Forks before any thread exists in this test; the child serves and reports its address.
  void fork_server() {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      ::close(pipe_ends[0]);
      start();
      const std::string address = listener->address();
      (void)!::write(pipe_ends[1], address.data(), address.size());
      ::close(pipe_ends[1]);
      for (;;) ::pause();
    }
    ::close(pipe_ends[1]);
    char text[100];
    const ssize_t n = ::read(pipe_ends[0], text, sizeof text);
    ASSERT_GT(n, 0);
    address_.assign(text, n);
    ::close(pipe_ends[0]);
    client = std::move(make_uv_environment()->new_network("test-client", 64 << 20)).value();
  }
  void TearDown() override {
    NetworkTest::TearDown();
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
  }
  pid_t child_ = 0;
  std::string address_;
};

TEST_F(ProcessTest, AKilledPeerIsNotMistakenForOneThatClosed) {
  fork_server();
  Status closed;
  auto options = dial_options(*client);
  options.closed = [&](const Status& why) { closed = why; };
  connect(options, address_);
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
  ::kill(child_, SIGKILL);
  ASSERT_TRUE(eventually(*client, [&] { return !closed.ok(); }));
  EXPECT_EQ(closed.code(), Code::kWorkerLost);
}

TEST_F(ProcessTest, AStoppedPeerDelaysNothingButItsAnswers) {
  fork_server();
  connect(dial_options(*client), address_);
  ::kill(child_, SIGSTOP);
  auto data = pattern(64 << 20, 1);
  on(*client, [&] {
    for (uint64_t i = 0; i < 16; ++i) {
      BulkHeader header;
      header.operation = i;
      channel->send(header, {data.data() + (i << 22), 4 << 20}, [](const Status&) {});
    }
  });
  auto reply = call(*client, *channel, Renew{}, client->loop().now() + 50ms);
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.status().code(), Code::kTimeout);
  const auto begin = std::chrono::steady_clock::now();
  on(*client, [&] {
    for (uint64_t i = 0; i < 16; ++i) channel->revoke(i);
  });
  on(*client, [&] { channel.reset(); });
  client.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

TEST_F(ProcessTest, AForkedChildMayDestroyEverythingAndTheParentGoesOn) {
  start();
  connect();
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
  auto env = make_uv_environment();
  const pid_t child = dsgd_test::fork_outside_the_allocator();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool forked = env->alive().code() == Code::kForked;
    listener.reset();
    client.reset();
    server.reset();
    channel.reset();
    ::_exit(forked ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(env->alive().ok());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
}

}  // namespace
}  // namespace dsgd::transport::test

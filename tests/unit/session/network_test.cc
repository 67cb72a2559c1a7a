// Where a job's workers listen and how they reach each other, as its configuration says; and that the log says why.

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "job.h"

namespace dsgd_test {
namespace {

int listening_sockets() {
  int count = 0;
  DIR* descriptors = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(descriptors)) {
    int listens = 0;
    socklen_t length = sizeof listens;
    if (getsockopt(std::atoi(entry->d_name), SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0) count += listens;
  }
  closedir(descriptors);
  return count;
}

std::string logged(dsgd_session* session) {
  std::string all;
  dsgd_log_record* record = nullptr;
  while (dsgd_log_poll(session, 0, &record, nullptr) == DSGD_OK) {
    all += std::string(dsgd_log_record_message(record)) + '\n';
    dsgd_log_record_free(record);
  }
  return all;
}

struct Network {
  const char* name;
  Settings settings;
  std::vector<std::string> said;  // in each worker's log
};

class Networks : public testing::TestWithParam<Network> {};

TEST_P(Networks, AreWhereTheJobRunsAndTheLogSaysWhy) {
  Settings settings = GetParam().settings;
  settings["log_level"] = "info";
  run_job(2, settings, [&](dsgd_session* session, int rank) {
    std::vector<float> data(200'000, static_cast<float>(rank + 1));  // too much to travel in small messages
    DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, data.data(), data.size() * 4, DSGD_FLOAT32, DSGD_SUM, nullptr, error_));
    ASSERT_EQ(std::count(data.begin(), data.end(), 3.0f), 200'000);
    const std::string log = logged(session);
    for (const std::string& said : GetParam().said) ASSERT_NE(log.find(said), std::string::npos) << said << " is not in\n" << log;
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, Networks,
    testing::Values(Network{"ipv6", {{"head", "[::1]:0"}}, {"peers reach this worker at [::1]:"}},
                    Network{"name", {{"head", "localhost:0"}}, {"peers reach this worker at "}},
                    Network{"listen", {{"listen", "127.0.0.2:0"}}, {"peers reach this worker at 127.0.0.2:", "`listen` is set"}},
                    Network{"interface", {{"interface", "lo"}}, {"peers reach this worker at 127.0.0.1:", "lo"}},
                    Network{"prefix", {{"interface", "127.0.0.0/8"}}, {"peers reach this worker at 127.", "127.0.0.0/8"}},
                    Network{"unix", {{"head", "unix:" + testing::TempDir() + "dsgd-network-" + std::to_string(getpid())}}, {"the head is a Unix socket"}}),
    [](const auto& info) { return info.param.name; });

TEST(Ports, AWorkerListensOnOneAlsoWhereItHostsTheHead) {
  const int before = listening_sockets();
  run_job(1, {{"head", "127.0.0.1:0"}}, [&](dsgd_session*, int) { EXPECT_EQ(listening_sockets(), before + 1); });
  run_job(2, {}, [&](dsgd_session* session, int) {
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, error_));
    EXPECT_EQ(listening_sockets(), before + 3) << "two workers, and a head apart";
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, error_));
  });
  EXPECT_EQ(listening_sockets(), before);
}

// As an earlier job's head may be that has not ended yet: it takes connections, and nothing comes of them.
class Squatter {
 public:
  Squatter() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&at), length), 0);
    EXPECT_EQ(listen(fd_, 100), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &length), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  ~Squatter() { close(fd_); }
  void turn_away(int connections) {
    for (int i = 0; i < connections; ++i) close(accept(fd_, nullptr, nullptr));
  }
  const std::string& address() const { return address_; }

 private:
  int fd_;
  std::string address_;
};

TEST(Head, IsOneOfThoseWhoWaitOnceItsAddressIsFree) {
  const int before = listening_sockets();
  auto squatter = std::make_unique<Squatter>();
  const std::string address = squatter->address();
  std::vector<std::thread> workers;
  for (int worker = 0; worker < 3; ++worker) {
    workers.emplace_back([&] {
      dsgd_config* config = dsgd_config_new();
      for (const auto& [key, value] : Settings{{"head", address}, {"num_workers", "3"}, {"init_timeout", "60s"}}) {
        DSGD_OK_OR_FAIL(dsgd_config_set(config, key.c_str(), value.c_str(), error_));
      }
      dsgd_session* session = nullptr;
      DSGD_OK_OR_FAIL(dsgd_init(config, &session, error_));
      dsgd_config_free(config);
      DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, error_));
      EXPECT_EQ(listening_sockets(), before + 3) << "each on one port, the head's worker too";
      DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, error_));
      dsgd_finalize(session);
    });
  }
  squatter->turn_away(20);  // by then all have come, and more than once
  squatter.reset();
  for (std::thread& worker : workers) worker.join();
}

}  // namespace
}  // namespace dsgd_test

// Where a job's workers listen and how they reach each other, as its configuration says; and that the log says why.

#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
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

}  // namespace
}  // namespace dsgd_test

// Where a job's workers listen and how they reach each other, as its configuration says; and that the log
// says why.

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
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
    if (getsockopt(std::atoi(entry->d_name), SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0)
      count += listens;
  }
  closedir(descriptors);
  return count;
}

// A port of 127.0.0.1 on which `socket` listens.
int bound_port(int socket) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  EXPECT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&at), length), 0);
  EXPECT_EQ(listen(socket, 1), 0);
  EXPECT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&at), &length), 0);
  return ntohs(at.sin_port);
}

int taken_port() {
  static const int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  static const int port = bound_port(held);
  return port;
}

int free_port() {
  const int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int port = bound_port(held);
  close(held);
  return port;
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
    DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, data.data(), data.data(), data.size() * 4, DSGD_FLOAT32,
                                   DSGD_SUM, nullptr, nullptr, error_));
    ASSERT_EQ(std::count(data.begin(), data.end(), 3.0f), 200'000);
    const std::string log = logged(session);
    for (const std::string& said : GetParam().said)
      ASSERT_NE(log.find(said), std::string::npos) << said << " is not in\n" << log;
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, Networks,
    testing::Values(
        Network{"ipv6", {{"head", "[::1]:0"}}, {"peers reach this worker at [::1]:"}},
        Network{"name", {{"head", "localhost:0"}}, {"peers reach this worker at "}},
        Network{"listen",
                {{"listen", "127.0.0.2:0"}},
                {"peers reach this worker at 127.0.0.2:", "`listen` is set"}},
        Network{"interface", {{"interface", "lo"}}, {"peers reach this worker at 127.0.0.1:", "lo"}},
        Network{"prefix", {{"interface", "127.0.0.0/8"}}, {"peers reach this worker at 127.", "127.0.0.0/8"}},
        Network{"unix",
                {{"head", "unix:" + testing::TempDir() + "dsgd-network-" + std::to_string(getpid())}},
                {"the head is a Unix socket"}}),
    [](const auto& info) { return info.param.name; });

// As workers are started by hand: each may become the head, which then accepts its peers where it is told to.
void run_embedded(const Settings& settings, const std::vector<std::string>& said) {
  std::vector<std::thread> workers;
  const std::string port = std::to_string(free_port());
  for (int worker = 0; worker < 2; ++worker) {
    workers.emplace_back([&] {
      dsgd_config* config = dsgd_config_new();
      Settings all = {{"head", "localhost:" + port},
                      {"num_workers", "2"},
                      {"init_timeout", "20s"},
                      {"log_level", "info"}};
      for (const auto& [key, value] : settings) all[key] = value;
      for (const auto& [key, value] : all) {
        ASSERT_EQ(dsgd_config_set(config, key.c_str(), value.c_str(), nullptr), DSGD_OK) << key;
      }
      dsgd_session* session = nullptr;
      Error error;
      const int32_t status = dsgd_init(config, &session, error);
      dsgd_config_free(config);
      ASSERT_EQ(status, DSGD_OK) << error.message();
      DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
      const std::string log = logged(session);
      for (const std::string& text : said)
        EXPECT_NE(log.find(text), std::string::npos) << text << " is not in\n" << log;
      dsgd_finalize(session);
    });
  }
  for (std::thread& worker : workers) worker.join();
}

TEST(EmbeddedHead, ANameOfTwoAddressesGivesOneHead) { run_embedded({}, {}); }
TEST(EmbeddedHead, ListenAlsoAppliesToItsWorker) {
  run_embedded({{"listen", "127.0.0.3:0"}}, {"peers reach this worker at 127.0.0.3:"});
}
TEST(EmbeddedHead, InterfaceCountsForItsWorkerToo) {
  run_embedded({{"interface", "lo"}}, {"interface = 'lo'"});
}

TEST(Ports, WorkersTakeTheFirstFreeOneOfTheRange) {
  const int first = free_port();
  const std::string range = std::to_string(first) + '-' + std::to_string(first + 9);
  run_embedded({{"ports", range}},
               {"peers reach this worker at 127.0.0.1:" + std::to_string(first).substr(0, 2)});
  // One port for two workers is too few.
  dsgd_session* session = nullptr;
  dsgd_config* config = dsgd_config_new();
  for (const auto& [key, value] : Settings{{"head", "127.0.0.1:1"},
                                           {"num_workers", "2"},
                                           {"embed_head", "never"},
                                           {"ports", std::to_string(taken_port())}}) {
    ASSERT_EQ(dsgd_config_set(config, key.c_str(), value.c_str(), nullptr), DSGD_OK) << key;
  }
  Error error;
  EXPECT_EQ(dsgd_init(config, &session, error), DSGD_ERR_ADDRESS_IN_USE);
  EXPECT_NE(error.message().find("ports = '"), std::string::npos) << error.message();
  dsgd_config_free(config);
}

TEST(Environment, VariablesOfOtherSoftwareAreWarnings) {
  setenv("DSGD_HEAD_PORT", "tcp://10.0.0.1:7700", 1);
  setenv("DSGD_HEAD_SERVICE_HOST", "10.0.0.1", 1);
  dsgd_session* session = nullptr;
  Error error;
  EXPECT_EQ(dsgd_init(nullptr, &session, error), DSGD_OK) << error.message();
  unsetenv("DSGD_HEAD_PORT");
  unsetenv("DSGD_HEAD_SERVICE_HOST");
  const std::string log = logged(session);
  EXPECT_NE(log.find("DSGD_HEAD_PORT is ignored"), std::string::npos) << log;
  EXPECT_NE(log.find("DSGD_HEAD_SERVICE_HOST is ignored"), std::string::npos) << log;
  dsgd_finalize(session);
}

TEST(Names, MayHaveQuotesAndBrackets) {  // as JAX prints the path of a parameter
  run_job(2, {}, [](dsgd_session* session, int rank) {
    const std::string name = "['dense'][\"kernel\"]";
    const int64_t shape[] = {rank + 1};
    dsgd_parameter* parameter = nullptr;
    dsgd_replica* replica = nullptr;
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, name.c_str(), DSGD_FLOAT32, shape, 1, 0, &parameter, error_));
    ASSERT_EQ(dsgd_parameter_name(parameter), name);
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    void *value, *gradient;
    DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &value, &gradient, error_));
    Error error;
    ASSERT_EQ(dsgd_start(session, nullptr, nullptr, error), DSGD_ERR_MISMATCH);
    ASSERT_NE(error.message().find(name), std::string::npos) << error.message();
  });
}

TEST(Ports, AWorkerListensOnOneAlsoWhereItHostsTheHead) {
  const int before = listening_sockets();
  run_job(1, {{"head", "127.0.0.1:0"}},
          [&](dsgd_session*, int) { EXPECT_EQ(listening_sockets(), before + 1); });
  run_job(2, {}, [&](dsgd_session* session, int) {
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
    EXPECT_EQ(listening_sockets(), before + 3) << "two workers, and a head apart";
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
  });
  EXPECT_EQ(listening_sockets(), before);
}

}  // namespace
}  // namespace dsgd_test

// Where a job's workers listen and how they reach each other, as its configuration says; and that the log
// says why.

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "job.h"

namespace dsgd_test::network_test {
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

// Makes `socket` listen on a port of 127.0.0.1, 0: any. Returns the port; 0: it is in use.
int bound_port(int socket, int port = 0) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t length = sizeof at;
  if (bind(socket, reinterpret_cast<sockaddr*>(&at), length) != 0) return 0;
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

// Three adjacent ports that were free, below those that the system gives away itself, and sockets that listen
// on them.
std::map<int, int> three_ports() {
  for (int first = 20000 + getpid() % 10000;; ++first) {
    std::map<int, int> sockets;
    for (int port = first; port < first + 3; ++port) {
      const int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (bound_port(held, port) == port)
        sockets[port] = held;
      else
        close(held);
    }
    if (sockets.size() == 3) return sockets;
    for (const auto& [port, held] : sockets) close(held);
  }
}

// The port at which the log of a worker says that its peers reach it; 0: it does not.
int told_port(const std::string& log) {
  const std::string before = "peers reach this worker at 127.0.0.1:";
  const size_t at = log.find(before);
  return at == std::string::npos ? 0 : std::atoi(log.c_str() + at + before.size());
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

// Workers dial each other at their first operation.
TEST(UnixSocket, ARelativePathOutlivesAChangeOfDirectory) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(testing::TempDir());
  std::atomic<int> joined{0};
  const Settings settings = {{"head", "unix:dsgd-relative-" + std::to_string(getpid())}, {"lease", "2s"}};
  run_job(2, settings, [&](dsgd_session* session, int) {
    ++joined;
    while (joined < 2) std::this_thread::yield();
    std::filesystem::current_path("/");
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
  });
  std::filesystem::current_path(before);
}

// As workers are started by hand: each may become the head, which then accepts its peers where it is told to.
// Returns their logs.
std::vector<std::string> run_embedded(const Settings& settings, const std::vector<std::string>& said) {
  std::vector<std::thread> workers;
  std::vector<std::string> logs(2);
  const std::string port = std::to_string(free_port());
  for (int worker = 0; worker < 2; ++worker) {
    workers.emplace_back([&, worker] {
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
      const std::string log = logs[static_cast<size_t>(worker)] = logged(session);
      for (const std::string& text : said)
        EXPECT_NE(log.find(text), std::string::npos) << text << " is not in\n" << log;
      dsgd_finalize(session);
    });
  }
  for (std::thread& worker : workers) worker.join();
  return logs;
}

TEST(EmbeddedHead, ANameOfTwoAddressesGivesOneHead) { run_embedded({}, {}); }
TEST(EmbeddedHead, ListenAlsoAppliesToItsWorker) {
  run_embedded({{"listen", "127.0.0.3:0"}}, {"peers reach this worker at 127.0.0.3:"});
}
TEST(EmbeddedHead, InterfaceCountsForItsWorkerToo) {
  run_embedded({{"interface", "lo"}}, {"interface = 'lo'"});
}

TEST(Ports, WorkersTakeTheFirstFreeOneOfTheRange) {
  const std::map<int, int> held = three_ports();
  const int first = held.begin()->first;
  close(held.at(first + 1));
  close(held.at(first + 2));
  std::set<int> told;
  for (const std::string& log :
       run_embedded({{"ports", std::to_string(first) + '-' + std::to_string(first + 9)}}, {}))
    told.insert(told_port(log));
  EXPECT_EQ(told, (std::set<int>{first + 1, first + 2})) << first << " is in use";
  close(held.at(first));
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
    EXPECT_EQ(listening_sockets(), before + 3) << "two workers, and a separate head";
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
  });
  EXPECT_EQ(listening_sockets(), before);
}

}  // namespace
}  // namespace dsgd_test::network_test

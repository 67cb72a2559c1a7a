// A hostile process opens thousands of silent connections to the head. Workers must be able to join
// meanwhile, and the head's process keeps its descriptors.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include <dsgd/dsgd.h>

namespace {

constexpr int kConnections = 2200;
constexpr rlim_t kDescriptors = 1024;  // of the head's process
constexpr int kJobs = 3;

// Holds kConnections silent connections open, and opens each one again as soon as it is closed. System calls
// only: it is the child of a process that has threads.
[[noreturn]] void flood(uint16_t port, int ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  rlimit high{};
  getrlimit(RLIMIT_NOFILE, &high);
  high.rlim_cur = high.rlim_max;
  setrlimit(RLIMIT_NOFILE, &high);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  static std::array<int, kConnections> connections;
  connections.fill(-1);
  for (bool told = false;; told = true) {
    for (int& fd : connections) {
      char byte;
      if (fd >= 0) {
        const ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) continue;
        close(fd);
      }
      fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      (void)connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to);
    }
    if (!told) (void)!write(ready, "!", 1);
  }
}

class Flood {
 public:
  explicit Flood(uint16_t port) {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) return;
    pid_ = fork();
    if (pid_ == 0) flood(port, ready[1]);
    close(ready[1]);
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  ~Flood() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
};

std::string read_all(FILE* pipe) {
  std::string text;
  for (char line[1024]; fgets(line, sizeof line, pipe);) text += line;
  pclose(pipe);
  return text;
}

long open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

TEST(Flood, WorkersJoinWhileSilentConnectionsFloodTheHead) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GE(limit.rlim_max, rlim_t{kConnections + 100}) << "the hostile process cannot open so many";
  limit.rlim_cur = kDescriptors;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  for (int job = 0; job < kJobs; ++job) {  // a head serves one
    dsgd_config* config = dsgd_config_new();
    ASSERT_EQ(dsgd_config_set(config, "head", "127.0.0.1:0", nullptr), DSGD_OK);
    ASSERT_EQ(dsgd_config_set(config, "num_workers", "2", nullptr), DSGD_OK);
    ASSERT_EQ(dsgd_config_set(config, "lease", "10s", nullptr), DSGD_OK);
    dsgd_head* head = nullptr;
    ASSERT_EQ(dsgd_head_start(config, &head, nullptr), DSGD_OK);
    dsgd_config_free(config);
    const std::string address = dsgd_head_address(head);
    const Flood flood(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));

    std::vector<FILE*> workers;
    for (int rank = 0; rank < 2; ++rank) {
      const std::string command =
          "DSGD_HEAD=" + address + " DSGD_NUM_WORKERS=2 DSGD_RANK=" + std::to_string(rank) +
          " DSGD_LEASE=10s DSGD_EMBED_HEAD=never DSGD_INIT_TIMEOUT=60s " PROCESS_WORKER " init 2>&1";
      workers.push_back(popen(command.c_str(), "r"));
      ASSERT_NE(workers.back(), nullptr);
    }
    for (int rank = 0; rank < 2; ++rank) {
      const std::string said = read_all(workers[static_cast<size_t>(rank)]);
      EXPECT_NE(said.find("joined " + std::to_string(rank) + "\nstarted\n"), std::string::npos) << said;
    }
    EXPECT_LT(open_descriptors(), 200) << "most descriptors belong to the host";
    dsgd_head_free(head);
  }
}

}  // namespace

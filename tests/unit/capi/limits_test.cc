// A host that is out of file descriptors gets an error from dsgd_init or dsgd_head_start, whichever of them
// is the one that is missing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <dsgd/dsgd.h>

#include "tests/unit/membership/etcd_server.h"

namespace {

bool leave_descriptors(int left) {
  const int lowest = open("/dev/null", O_RDONLY);
  close(lowest);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(lowest + left);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// The statuses with which a process may end: 0 if the session was opened, 1 for a clear error, 2 for anything
// else.
int init_with_descriptors(int left, int num_workers = 1) {
  if (!leave_descriptors(left)) return 2;
  dsgd_config* config = dsgd_config_new();
  dsgd_config_set(config, "head", "127.0.0.1:0", nullptr);
  dsgd_config_set(config, "num_workers", std::to_string(num_workers).c_str(), nullptr);
  dsgd_config_set(config, "init_timeout", "1s", nullptr);
  dsgd_session* session = nullptr;
  dsgd_error* error = nullptr;
  const int32_t status = dsgd_init(config, &session, &error);
  const bool told = status == DSGD_OK || (error && *dsgd_error_message(error));
  if (told) fputs(error ? dsgd_error_message(error) : "", stderr);
  dsgd_error_free(error);
  dsgd_config_free(config);
  dsgd_finalize(session);
  return !told ? 2 : status == DSGD_OK ? 0 : 1;
}

bool opened_or_refused(int status) { return WIFEXITED(status) && WEXITSTATUS(status) <= 1; }

// Each in a process that has had no event loop before: libuv makes what belongs to the process with the first
// one.
TEST(Limits, WithoutDescriptorsInitIsRefusedAndTheHostLives) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (int left = 0; left <= 40; ++left) {
    EXPECT_EXIT(_exit(init_with_descriptors(left)), opened_or_refused, "") << left << " descriptors left";
  }
  EXPECT_EXIT(_exit(init_with_descriptors(0)), testing::ExitedWithCode(1), "");
  EXPECT_EXIT(_exit(init_with_descriptors(200)), testing::ExitedWithCode(0), "");
}

// The head's: two for each worker; a worker's own: two for each of the others, and two to the head.
TEST(Limits, AJobThatTheDescriptorsDoNotSufficeForIsRefusedAtOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(_exit(init_with_descriptors(200, 1000)), testing::ExitedWithCode(1),
              "a job of 1000 workers needs up to 4000 descriptors in this process, but only 1[0-9][0-9] more "
              ".*ulimit -n");
}

int in_a_process(const std::function<int()>& program) {
  const pid_t child = fork();
  if (child == 0) _exit(program());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Joins the job of the head whose address comes from `fd`. 0: it has joined and left.
int join_head(int fd) {
  char address[64] = "";
  if (read(fd, address, sizeof address - 1) <= 0) return 1;
  dsgd_config* config = dsgd_config_new();
  dsgd_config_set(config, "head", address, nullptr);
  dsgd_config_set(config, "num_workers", "1", nullptr);
  dsgd_config_set(config, "lease", "2s", nullptr);
  dsgd_config_set(config, "embed_head", "never", nullptr);
  dsgd_config_set(config, "init_timeout", "10s", nullptr);
  dsgd_session* session = nullptr;
  const int32_t joined = dsgd_init(config, &session, nullptr);
  const int32_t left = dsgd_finalize(session);
  dsgd_config_free(config);
  return joined == DSGD_OK && left == DSGD_OK ? 0 : 1;
}

// The statuses as above, for a head: 0 if a worker of another process has joined it.
int serve_with_descriptors(int left, const std::string& state) {
  int ends[2];
  if (pipe(ends) != 0) return 2;
  const pid_t worker = fork();
  if (worker == 0) {
    close(ends[1]);
    _exit(join_head(ends[0]));
  }
  close(ends[0]);
  if (!leave_descriptors(left)) return 2;
  dsgd_config* config = dsgd_config_new();
  dsgd_config_set(config, "head", "127.0.0.1:0", nullptr);
  dsgd_config_set(config, "lease", "2s", nullptr);
  dsgd_config_set(config, "head_state", state.c_str(), nullptr);
  dsgd_head* head = nullptr;
  const int32_t started = dsgd_head_start(config, &head, nullptr);
  if (started == DSGD_OK) {
    const std::string address = dsgd_head_address(head);
    if (write(ends[1], address.data(), address.size()) < 0) return 2;
  }
  close(ends[1]);
  int status = 0;
  waitpid(worker, &status, 0);
  const bool ended = started != DSGD_OK || dsgd_head_wait(head, 10000, nullptr) == DSGD_OK;
  dsgd_head_free(head);
  dsgd_config_free(config);
  if (started != DSGD_OK) return started == DSGD_ERR_LIMIT ? 1 : 3;
  return ended && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 2;
}

// Counts what the head needs beside its connections to workers: a socket that listens, and the file or the
// connections to etcd.
TEST(Limits, AHeadThatStartsHasTheDescriptorsForItsWorkers) {
  const std::string folder = std::filesystem::temp_directory_path() / "dsgd-limits-XXXXXX";
  std::string made = folder;
  ASSERT_TRUE(mkdtemp(made.data()));
  dsgd_test::EtcdServer etcd;
  ASSERT_TRUE(etcd.runs());
  const auto etcd_state = [&](int number) {
    return "etcd://" + etcd.address() + "/" + std::to_string(number);
  };
  constexpr int kPlenty = 200;
  for (int tries = 0; tries < 100; ++tries) {  // it does not answer at once
    if (in_a_process([&] { return serve_with_descriptors(kPlenty, etcd_state(-1 - tries)); }) == 0) break;
    usleep(100000);
  }
  const std::pair<const char*, std::function<std::string(int)>> kinds[] = {
      {"no state", [](int) { return std::string(); }},
      {"a file", [&](int left) { return made + "/" + std::to_string(left); }},
      {"etcd", etcd_state}};
  for (const auto& [kind, state] : kinds) {
    bool started = false;
    for (int left = 10; left <= 30; ++left) {
      const int status = in_a_process([&, left] { return serve_with_descriptors(left, state(left)); });
      EXPECT_TRUE(status == 0 || (status == 1 && !started))
          << kind << ", " << left << " descriptors left: " << status;
      started = started || status == 0;
    }
    EXPECT_TRUE(started) << kind;
  }
  std::filesystem::remove_all(made);
}

// With standard streams closed, what the host prints must not go into a connection, nor libuv find one of
// them among its own.
int init_without(const std::vector<int>& streams) {
  const int report = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 100);
  for (int stream : streams) close(stream);
  int wrong = 0;
  const auto look = [&](const char* when, auto&& bad) {
    for (int stream : streams) {
      if (!bad(stream)) continue;
      dprintf(report, "%s, descriptor %d is in use\n", when, stream);
      ++wrong;
    }
  };
  dsgd_config* config = dsgd_config_new();
  dsgd_config_set(config, "head", "127.0.0.1:0", nullptr);
  dsgd_config_set(config, "num_workers", "1", nullptr);
  dsgd_session* session = nullptr;
  dsgd_error* error = nullptr;
  if (dsgd_init(config, &session, &error) != DSGD_OK) {
    dprintf(report, "dsgd_init: %s\n", dsgd_error_message(error));
    ++wrong;
  }
  dsgd_queue_fd(session);
  // Others may come and go while heartbeats are set up, but no connection.
  look("in a session", [](int stream) {
    sockaddr_storage peer;
    socklen_t length = sizeof peer;
    return getpeername(stream, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
  });
  dsgd_config_free(config);
  dsgd_finalize(session);
  look("after the session", [](int stream) { return fcntl(stream, F_GETFD) != -1; });
  dsgd_error_free(error);
  return wrong;
}

TEST(Limits, ClosedStandardStreamsStayClosed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const std::vector<int>& streams :
       std::vector<std::vector<int>>{{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}}) {
    EXPECT_EXIT(_exit(init_without(streams)), testing::ExitedWithCode(0), "");
  }
}

}  // namespace

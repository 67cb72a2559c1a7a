// A host that is out of file descriptors gets an error from dsgd_init, whichever of them is the one that is
// missing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <dsgd/dsgd.h>

namespace {

// The statuses with which a process may end: 0 if the session was opened, 1 for a clear error, 2 for anything
// else.
int init_with_descriptors(int left, int num_workers = 1) {
  const int lowest = open("/dev/null", O_RDONLY);
  close(lowest);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(lowest + left);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
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
              "a job of 1000 workers needs up to 4000 connections in this process, but only 1[0-9][0-9] more "
              ".*ulimit -n");
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

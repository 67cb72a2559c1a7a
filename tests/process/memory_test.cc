// A worker that has no memory for a call's buffers: it says so, and the others are told, long before the
// call's time is over.

#include <dsgd/dsgd.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace {

dsgd_session* open_session(const char* address, int rank) {
  dsgd_config* config = dsgd_config_new();
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, std::string>>{{"num_workers", "2"},
                                                        {"head", address},
                                                        {"embed_head", "never"},
                                                        {"rank", std::to_string(rank)},
                                                        {"step_timeout", "100s"}}) {
    dsgd_config_set(config, key, value.c_str(), nullptr);
  }
  dsgd_session* session = nullptr;
  if (dsgd_init(config, &session, nullptr) != DSGD_OK) std::_Exit(3);
  dsgd_config_free(config);
  return session;
}

// Two workers on threads; the process may take no more than a little memory from now on. Float16 is added up
// in float32.
[[noreturn]] void all_reduce_without_memory(bool scatter) {
  // A further arena of glibc reserves 64 MiB of addresses. A thread that made one under the limit would leave
  // no memory for small objects.
  if (mallopt(M_ARENA_MAX, 1) != 1) std::_Exit(8);
  dsgd_config* config = dsgd_config_new();
  dsgd_config_set(config, "head", "127.0.0.1:0", nullptr);
  dsgd_config_set(config, "num_workers", "2", nullptr);
  dsgd_head* head = nullptr;
  if (dsgd_head_start(config, &head, nullptr) != DSGD_OK) std::_Exit(2);
  dsgd_config_free(config);
  constexpr size_t kCount = 100u << 20;
  std::vector<uint16_t> data[2] = {std::vector<uint16_t>(kCount), std::vector<uint16_t>(kCount)};
  std::vector<uint16_t> part[2] = {std::vector<uint16_t>(kCount / 2), std::vector<uint16_t>(kCount / 2)};
  dsgd_session* sessions[2];
  std::thread first([&] { sessions[0] = open_session(dsgd_head_address(head), 0); });
  sessions[1] = open_session(dsgd_head_address(head), 1);
  first.join();
  int32_t how[2];
  char what[2][512];  // no std::string: the host has no memory either
  const auto call = [&](int rank) {
    dsgd_error* error = nullptr;
    how[rank] = scatter ? dsgd_reduce_scatter(sessions[rank], nullptr, data[rank].data(), kCount * 2,
                                              part[rank].data(), kCount, nullptr, DSGD_FLOAT16, DSGD_SUM,
                                              nullptr, nullptr, &error)
                        : dsgd_allreduce(sessions[rank], nullptr, data[rank].data(), data[rank].data(),
                                         kCount * 2, DSGD_FLOAT16, DSGD_SUM, nullptr, nullptr, &error);
    std::snprintf(what[rank], sizeof what[rank], "%s", dsgd_error_message(error));
  };
  std::atomic<bool> limited = false;  // neither has the memory, so nothing moves
  const auto begun = std::chrono::steady_clock::now();
  rlimit limit{};
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  limit.rlim_cur = limit.rlim_max = pages * 4096 + (60u << 20);
  std::thread second([&] {
    while (!limited) std::this_thread::yield();
    call(1);
  });
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(4);
  limited = true;
  call(0);
  second.join();
  for (int rank : {0, 1}) {
    std::fprintf(stderr, "rank %d: %d %s\n", rank, how[rank], what[rank]);
    if (how[rank] != DSGD_ERR_NO_MEMORY) std::_Exit(5);
    if (std::strstr(what[rank], "no memory for") == nullptr) std::_Exit(6);
  }
  dsgd_finalize(sessions[0]);
  dsgd_finalize(sessions[1]);
  dsgd_head_free(head);
  std::_Exit(std::chrono::steady_clock::now() - begun < std::chrono::seconds(50) ? 0 : 7);
}

TEST(Memory, WhereThereIsNoneForACallAllAreTold) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(all_reduce_without_memory(false), testing::ExitedWithCode(0), "no memory for");
  EXPECT_EXIT(all_reduce_without_memory(true), testing::ExitedWithCode(0), "no memory for");
}

}  // namespace

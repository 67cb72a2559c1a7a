// fork() for tests whose child goes on in C++ while the parent has other threads.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace dsgd_test {

#ifdef DSGD_SANITIZED_ADDRESS
inline bool other_threads_sleep() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || stat.compare(name_end + 2, 1, "S") != 0) return false;
  }
  return true;
}
#endif

// AddressSanitizer's allocator, unlike the C library's, does not survive a fork while another thread is
// inside it: the child would wait for that thread's lock for ever.
inline pid_t fork_outside_the_allocator() {
#ifdef DSGD_SANITIZED_ADDRESS
  while (!other_threads_sleep()) sched_yield();
#endif
  return fork();
}

}  // namespace dsgd_test

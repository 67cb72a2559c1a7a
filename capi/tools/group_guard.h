// A small process that outlives this one if need be: when this process dies without having ended its children
// (kill -9), it kills their process groups. Parent-death signals alone reach the children but not what they
// have started.
#pragma once

#include <sys/types.h>

namespace dsgd_tool {

class GroupGuard {
 public:
  GroupGuard();   // forks; to be made before there are threads
  ~GroupGuard();  // the guard ends, and with it what is still watched
  GroupGuard(const GroupGuard&) = delete;
  GroupGuard& operator=(const GroupGuard&) = delete;

  void watch(pid_t group);
  void forget(pid_t group);  // before its leader is reaped: its number may then belong to others

 private:
  int pipe_ = -1;
  pid_t pid_ = 0;
};

}  // namespace dsgd_tool

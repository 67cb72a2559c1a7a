// How many of its cases a long test runs. With TEST_ALL_CASES=1, which `tests/run --all` sets, it runs all.
// Otherwise it skips cases that take no path of their own. Under a sanitizer, which makes a test 5 to 15
// times as long, it skips more of them, and ignores TEST_ALL_CASES.
#pragma once

#include <cstdlib>

namespace dsgd_test {

#ifdef DSGD_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline bool runs_all_cases() {
  const char* const all = std::getenv("TEST_ALL_CASES");
  return !kSanitized && all != nullptr && *all != '\0';
}

// Returns the stride n of a loop over cases: the test runs every nth case.
inline int one_of(int by_default, int sanitized) {
  return kSanitized ? sanitized : runs_all_cases() ? 1 : by_default;
}

// Skips cases of nested loops: every nth case runs. n must have no divisor in common with the number of
// values of an inner loop. Otherwise some of these values never run.
class Thinned {
 public:
  explicit Thinned(int by_default = 1, int sanitized = 5) : one_of_(one_of(by_default, sanitized)) {}
  bool skip_next() { return number_++ % one_of_ != 0; }

 private:
  const int one_of_;
  int number_ = 0;
};

}  // namespace dsgd_test

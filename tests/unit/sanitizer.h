// The share of its cases that a long test runs. DSGD_TEST_ALL=1, which `tests/run --all` sets, asks for all.
// Otherwise a test leaves out cases that take no path of their own, and more of them under a sanitizer, which
// makes a test 5 to 15 times as long.
#pragma once

#include <cstdlib>
#include <string_view>

namespace dsgd_test {

#ifdef DSGD_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline bool runs_all_cases() {
  const char* const all = std::getenv("DSGD_TEST_ALL");
  return !kSanitized && all != nullptr && std::string_view(all) == "1";
}

// A test runs one of so many cases.
inline int one_of(int by_default, int sanitized) {
  return kSanitized ? sanitized : runs_all_cases() ? 1 : by_default;
}

// Of the cases of a loop. Where one of five runs, each value of a dimension comes up: 5 divides no usual
// number of values.
class Thinned {
 public:
  explicit Thinned(int by_default = 1, int sanitized = 5) : one_of_(one_of(by_default, sanitized)) {}
  bool skip_next() { return number_++ % one_of_ != 0; }

 private:
  const int one_of_;
  int number_ = 0;
};

}  // namespace dsgd_test

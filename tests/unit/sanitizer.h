// Whether this build has a sanitizer, which makes a test 5 to 15 times as long. With one, a long test leaves
// out cases that take no path of their own; the plain build runs all of them.
#pragma once

namespace dsgd_test {

#ifdef DSGD_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Of the cases of a loop. With a sanitizer one of five runs: 5 divides no usual number of values of a
// dimension, so each value comes up.
class Thinned {
 public:
  bool skip_next() { return kSanitized && number_++ % 5 != 0; }

 private:
  int number_ = 0;
};

}  // namespace dsgd_test

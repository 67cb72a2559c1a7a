// Whether this build has a sanitizer, which makes a test 5 to 15 times as long. Such a build looks for wrong
// accesses and races; a long test then leaves out cases that take no path of their own. The other build
// compares the values of all cases.
#pragma once

namespace dsgd_test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace dsgd_test

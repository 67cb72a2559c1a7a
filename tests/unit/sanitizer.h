// Whether this build has a sanitizer, which makes a test 5 to 15 times as long. With one, a long test leaves
// out cases that take no path of their own; the plain build runs all of them.
#pragma once

namespace dsgd_test {

#ifdef DSGD_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace dsgd_test

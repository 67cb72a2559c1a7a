// main() of programs made of several files: `session_tests step_test` runs the tests of step_test.cc,
// `session_tests` all.
#include <cstdio>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (argc > 2) {
    std::fprintf(stderr, "usage: %s [FILE]\n", argv[0]);
    return 2;
  }
  if (argc == 2 && GTEST_FLAG_GET(filter) == "*") {  // else the user has chosen, or a death test has
    const std::string file = std::string("/").append(argv[1]).append(".cc");
    std::string tests;
    const testing::UnitTest& all = *testing::UnitTest::GetInstance();
    for (int s = 0; s < all.total_test_suite_count(); ++s) {
      const testing::TestSuite& suite = *all.GetTestSuite(s);
      for (int t = 0; t < suite.total_test_count(); ++t) {
        const testing::TestInfo& test = *suite.GetTestInfo(t);
        if (std::string_view(test.file()).ends_with(file))
          tests.append(suite.name()).append(".").append(test.name()).append(":");
      }
    }
    if (tests.empty()) {
      std::fprintf(stderr, "%s: no test is in %s\n", argv[0], file.c_str());
      return 2;
    }
    GTEST_FLAG_SET(filter, tests);
  }
  return RUN_ALL_TESTS();
}

// Whatever is thrown behind the boundary becomes a status; structs of older callers are not written beyond
// their end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "capi/src/call.h"
#include "capi/src/sized.h"

namespace dsgd::capi {
namespace {

using ::testing::HasSubstr;

template <typename Body>
int32_t run(dsgd_error** error, Body&& body) {
  return guard("dsgd_test", error, [&](const Call&) -> Status { return body(); });
}

TEST(Guard, success_leaves_the_error_alone) {
  auto* const untouched = reinterpret_cast<dsgd_error*>(0x1234);
  dsgd_error* error = untouched;
  EXPECT_EQ(run(&error, [] { return Status(); }), DSGD_OK);
  EXPECT_EQ(error, untouched);
}

TEST(Guard, a_status_becomes_an_error_with_all_its_fields) {
  dsgd_error* error = nullptr;
  EXPECT_EQ(run(&error,
                [] {
                  return Status(Code::kTimeout, "rank 3 is late")
                      .with_rank(3, "node7")
                      .with_operation("step 17")
                      .with_parameter("weight");
                }),
            DSGD_ERR_TIMEOUT);
  EXPECT_EQ(dsgd_error_code(error), DSGD_ERR_TIMEOUT);
  EXPECT_EQ(dsgd_error_rank(error), 3);
  EXPECT_STREQ(dsgd_error_host(error), "node7");
  EXPECT_STREQ(dsgd_error_operation(error), "step 17");
  EXPECT_STREQ(dsgd_error_parameter(error), "weight");
  EXPECT_STREQ(dsgd_error_message(error), "rank 3 is late");
  dsgd_error_free(error);
}

TEST(Guard, exhausted_memory_is_a_status_and_its_error_may_be_freed_often) {
  for (int i = 0; i < 2; ++i) {
    dsgd_error* error = nullptr;
    EXPECT_EQ(run(&error, []() -> Status { throw std::bad_alloc(); }), DSGD_ERR_NO_MEMORY);
    EXPECT_EQ(dsgd_error_code(error), DSGD_ERR_NO_MEMORY);
    EXPECT_THAT(dsgd_error_message(error), HasSubstr("memory"));
    dsgd_error_free(error);
  }
}

TEST(Guard, exceptions_are_internal_errors_that_name_function_and_cause) {
  dsgd_error* error = nullptr;
  EXPECT_EQ(run(&error, []() -> Status { throw std::runtime_error("a defect"); }), DSGD_ERR_INTERNAL);
  EXPECT_THAT(dsgd_error_message(error), HasSubstr("dsgd_test"));
  EXPECT_THAT(dsgd_error_message(error), HasSubstr("a defect"));
  dsgd_error_free(error);
  EXPECT_EQ(run(nullptr, []() -> Status { throw 42; }), DSGD_ERR_INTERNAL);
}

// A struct whose second field came in a later release than its first.
struct Grown {
  size_t struct_size;
  int64_t first;
  int64_t second;
};
constexpr size_t kFirstSize = offsetof(Grown, second);

TEST(Sized, an_older_callers_struct_is_not_written_beyond_its_end) {
  const Call call("dsgd_test");
  Grown old{.struct_size = 0, .first = 0, .second = 99};
  ASSERT_TRUE(
      init_sized(call, &old, kFirstSize, Grown{.struct_size = 0, .first = 1, .second = 2}, kFirstSize, "x")
          .ok());
  EXPECT_EQ(old.first, 1);
  EXPECT_EQ(old.second, 99);
  ASSERT_TRUE(check_sized(call, &old, kFirstSize, "x", "init").ok());
  write_sized(&old, Grown{.struct_size = 0, .first = 5, .second = 6});
  EXPECT_EQ(old.struct_size, kFirstSize);
  EXPECT_EQ(old.first, 5);
  EXPECT_EQ(old.second, 99);
}

}  // namespace
}  // namespace dsgd::capi

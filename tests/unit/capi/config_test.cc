// Configuration from calls, environment and files; sized structs; the table of keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/unit/capi/world.h"

namespace {

using ::testing::HasSubstr;

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : path_(::testing::TempDir() + "dsgd-" + std::to_string(getpid()) + ".conf") {
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::remove(path_.c_str()); }
  const char* path() const { return path_.c_str(); }

 private:
  const std::string path_;
};

class ConfigTest : public ::testing::Test {
 protected:
  ~ConfigTest() override {
    dsgd_error_free(error_);
    dsgd_config_free(config_);
  }
  void renew() {
    dsgd_config_free(config_);
    config_ = dsgd_config_new();
  }
  dsgd_config* config_ = dsgd_config_new();
  dsgd_error* error_ = nullptr;
};

TEST_F(ConfigTest, calls_go_before_environment_before_file_before_default) {
  EXPECT_STREQ(dsgd_config_value(config_, "lease"), "10s");
  const ConfigFile file("lease = 3s # a comment\n\n# another\njob = from-file\n");
  ASSERT_EQ(dsgd_config_load(config_, file.path(), &error_), DSGD_OK) << dsgd_error_message(error_);
  EXPECT_STREQ(dsgd_config_value(config_, "lease"), "3s");
  const Variable variable("DSGD_LEASE", "4s");
  renew();
  ASSERT_EQ(dsgd_config_load(config_, file.path(), &error_), DSGD_OK) << dsgd_error_message(error_);
  EXPECT_STREQ(dsgd_config_value(config_, "lease"), "4s");
  EXPECT_STREQ(dsgd_config_value(config_, "job"), "from-file");
  ASSERT_EQ(dsgd_config_set(config_, "lease", "5s", &error_), DSGD_OK) << dsgd_error_message(error_);
  EXPECT_STREQ(dsgd_config_value(config_, "lease"), "5s");
}

TEST_F(ConfigTest, a_bad_line_names_file_and_line_and_changes_nothing) {
  const ConfigFile file("lease = 3s\njob = x\nleese = 4s\n");
  EXPECT_EQ(dsgd_config_load(config_, file.path(), &error_), DSGD_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(dsgd_error_message(error_), HasSubstr(std::string(file.path()) + ":3"));
  EXPECT_THAT(dsgd_error_message(error_), HasSubstr("lease"));
  EXPECT_STREQ(dsgd_config_value(config_, "lease"), "10s");
}

TEST_F(ConfigTest, a_bad_variable_is_an_error_of_init_that_names_it) {
  dsgd_session* session = nullptr;
  {
    const Variable variable("DSGD_LEASE", "soon");
    renew();
    EXPECT_EQ(dsgd_init(config_, &session, &error_), DSGD_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(dsgd_error_message(error_), HasSubstr("DSGD_LEASE"));
  }
  EXPECT_EQ(session, nullptr);
}

TEST_F(ConfigTest, an_error_of_init_names_a_misspelt_variable) {
  const Variable count("DSGD_NUM_WORKER", "4"), head("DSGD_HEAD", "127.0.0.1:7700");
  dsgd_session* session = nullptr;
  EXPECT_EQ(dsgd_init(nullptr, &session, &error_), DSGD_ERR_INVALID_ARGUMENT);
  EXPECT_STREQ(dsgd_error_parameter(error_), "num_workers");
  EXPECT_THAT(dsgd_error_message(error_), HasSubstr("the unknown variable DSGD_NUM_WORKER: did you mean "
                                                    "DSGD_NUM_WORKERS?"));
}

TEST_F(ConfigTest, one_configuration_serves_several_sessions_and_may_be_freed_first) {
  dsgd_session *first = nullptr, *second = nullptr;
  must(dsgd_init(config_, &first, &error_), error_, "init");
  must(dsgd_init(config_, &second, &error_), error_, "init");
  dsgd_config_free(config_);
  config_ = nullptr;
  EXPECT_EQ(dsgd_size(first), 1);
  EXPECT_EQ(dsgd_size(second), 1);
  dsgd_finalize(first);
  dsgd_finalize(second);
}

TEST_F(ConfigTest, the_table_is_complete_sorted_and_its_defaults_hold) {
  std::string previous;
  ASSERT_GT(dsgd_config_key_count(), 15u);
  for (size_t i = 0; i < dsgd_config_key_count(); ++i) {
    dsgd_config_key key;
    ASSERT_EQ(dsgd_config_key_init(&key, sizeof key), DSGD_OK);
    ASSERT_EQ(dsgd_config_key_at(i, &key, nullptr), DSGD_OK);
    SCOPED_TRACE(key.name);
    EXPECT_LT(previous, key.name);
    previous = key.name;
    EXPECT_STRNE(key.help, "");
    EXPECT_STREQ(dsgd_config_value(config_, key.name), key.default_value);
    std::string variable = "DSGD_" + previous;
    for (char& c : variable) c = static_cast<char>(toupper(c));
    EXPECT_EQ(variable, key.environment);
    EXPECT_THAT(key.type, ::testing::AnyOf(::testing::StrEq("string"), ::testing::StrEq("integer"),
                                           ::testing::StrEq("duration"), ::testing::StrEq("size"),
                                           ::testing::StrEq("switch"), ::testing::StrEq("choice")));
    if (*key.default_value) {
      EXPECT_EQ(dsgd_config_set(config_, key.name, key.default_value, nullptr), DSGD_OK) << "its own default";
    }
  }
}

// A caller with another size of struct than the library's, between guards.
template <typename T>
struct Guarded {
  alignas(T) unsigned char bytes[sizeof(T) + 64];
  explicit Guarded(unsigned char fill) { std::memset(bytes, fill, sizeof bytes); }
  T* get() { return reinterpret_cast<T*>(bytes); }
};

template <typename T>
void expect_init_fills_exactly(int32_t (*init)(T*, size_t)) {
  for (const size_t size : {sizeof(T), sizeof(T) + 16}) {
    Guarded<T> one(0xaa), other(0x55);
    ASSERT_EQ(init(one.get(), size), DSGD_OK);
    ASSERT_EQ(init(other.get(), size), DSGD_OK);
    EXPECT_EQ(one.get()->struct_size, size);
    EXPECT_EQ(std::memcmp(one.bytes, other.bytes, size), 0) << "a byte is left as it was";
    for (size_t i = size; i < sizeof one.bytes; ++i)
      EXPECT_EQ(one.bytes[i], 0xaa) << "written beyond the end";
  }
}

TEST(SizedStructs, init_fills_every_byte_of_the_caller_and_none_beyond) {
  expect_init_fills_exactly<dsgd_step_result>(dsgd_step_result_init);
  expect_init_fills_exactly<dsgd_config_key>(dsgd_config_key_init);
}

TEST(SizedStructs, a_larger_struct_of_a_newer_caller_is_used_as_far_as_it_is_known) {
  Guarded<dsgd_config_key> key(0xaa);
  ASSERT_EQ(dsgd_config_key_init(key.get(), sizeof(dsgd_config_key) + 8), DSGD_OK);
  EXPECT_EQ(dsgd_config_key_at(0, key.get(), nullptr), DSGD_OK);
  EXPECT_EQ(key.get()->struct_size, sizeof(dsgd_config_key) + 8);
  EXPECT_STRNE(key.get()->name, "");
  EXPECT_EQ(key.bytes[sizeof(dsgd_config_key)], 0);
  EXPECT_EQ(key.bytes[sizeof(dsgd_config_key) + 8], 0xaa);
  key.bytes[sizeof(dsgd_config_key) + 7] = 1;
  dsgd_error* error = nullptr;
  EXPECT_EQ(dsgd_config_key_at(0, key.get(), &error), DSGD_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(take_message(error), HasSubstr("newer library"));
}

TEST(SizedStructs, step_result_defaults_are_as_written_in_the_header) {
  dsgd_step_result result;
  ASSERT_EQ(dsgd_step_result_init(&result, sizeof result), DSGD_OK);
  EXPECT_EQ(result.step, 0);
  EXPECT_EQ(result.applied, 0);
  EXPECT_NE(result.gradient_norm, result.gradient_norm) << "NaN";
  EXPECT_EQ(result.nonfinite, 0);
  EXPECT_EQ(result.nonfinite_rank, -1);
  EXPECT_EQ(result.skipped, 0);
}

}  // namespace

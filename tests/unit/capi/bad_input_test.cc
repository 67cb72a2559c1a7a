// Bad input for every public function: a status and a message that names what is wrong, and the process goes
// on.
#include "tests/unit/capi/bad_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/unit/capi/header.h"

void PrintTo(const BadCall& bad, std::ostream* out) { *out << bad.function << ": " << bad.what; }

namespace {

using ::testing::HasSubstr;

std::vector<BadCall> all_cases() {
  std::vector<BadCall> all;
  for (const auto& cases : {config_cases(), session_cases(), model_cases(), step_cases(), operation_cases(),
                            collective_cases(), data_cases(), plugin_cases()})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

World& world() {
  static World* const made = new World;
  return *made;
}

// Those of the row, and what is the same for all rows of a kind.
std::vector<std::string> words_of(const BadCall& bad) {
  std::vector<std::string> words = bad.says.words;
  const std::string what = bad.what;
  if (what.rfind("NULL", 0) == 0) words.push_back(std::string(bad.function) + ": ");
  if (what.rfind("foreign", 0) == 0) words.push_back("it was freed, or is a handle of another kind");
  if (what == "closed") words.insert(words.end(), {"the session is closed", "dsgd_init"});
  if (what == "bad time") words.push_back("give milliseconds, or -1");
  return words;
}

class BadInput : public ::testing::TestWithParam<BadCall> {};

TEST_P(BadInput, gives_a_status_and_a_message) {
  const BadCall& bad = GetParam();
  SCOPED_TRACE(std::string(bad.function) + ": " + bad.what);
  dsgd_error* error = nullptr;
  EXPECT_EQ(bad.call(world(), &error), bad.expected) << dsgd_error_message(error);
  if (bad.says.message) {
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(dsgd_error_code(error), bad.expected);
    for (const std::string& word : words_of(bad)) EXPECT_THAT(dsgd_error_message(error), HasSubstr(word));
  } else {
    EXPECT_EQ(error, nullptr);
  }
  dsgd_error_free(error);
  EXPECT_EQ(bad.call(world(), nullptr), bad.expected) << "without an error argument";
}

std::string case_name(const ::testing::TestParamInfo<BadCall>& info) {
  std::string name = std::string(info.param.function) + "_" + info.param.what;
  for (char& c : name)
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  return name + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(All, BadInput, ::testing::ValuesIn(all_cases()), case_name);

TEST(BadInputTable, has_every_function_of_the_header) {
  std::set<std::string> declared, covered;
  for (const auto& [function, arguments] : declared_functions()) declared.insert(function);
  for (const auto& bad : all_cases()) covered.insert(bad.function);
  EXPECT_GT(declared.size(), 80u);
  EXPECT_EQ(declared, covered);
}

TEST(BadInputTable, says_something_of_every_message) {
  for (const auto& bad : all_cases()) {
    EXPECT_EQ(bad.says.message, !bad.says.words.empty()) << bad.function << ": " << bad.what;
    for (const std::string& word : bad.says.words) EXPECT_NE(word, "") << bad.function << ": " << bad.what;
  }
}

TEST(BadInputTable, leaves_a_session_that_still_trains) {
  World own;
  for (const auto& bad : all_cases()) bad.call(own, nullptr);
  own.running.value[0] = 3;
  own.running.gradient[0] = 2;
  dsgd_error* error = nullptr;
  ASSERT_EQ(dsgd_step(own.running.session, 1, nullptr, &error), DSGD_OK) << take_message(error);
  EXPECT_EQ(own.running.value[0], 2);  // 3 - 0.5 * 2
}

}  // namespace

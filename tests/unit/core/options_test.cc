#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/config/config.h"

namespace dsgd {
namespace {

using testing::HasSubstr;

Options parse(const char* text) {
  auto options = Options::parse(text, "strategy 'ps'");
  EXPECT_TRUE(options.ok()) << options.status().message();
  return std::move(options).value();
}

TEST(Options, reads_words_between_any_blanks) {
  Options options = parse(" \t lr=0.5\nnesterov=1   mode=fast \r\n");
  double rate = 0;
  bool nesterov = false;
  std::string mode = "slow";
  options.number("lr", &rate, 0, 1);
  options.flag("nesterov", &nesterov);
  options.choice("mode", &mode, {"slow", "fast"});
  EXPECT_TRUE(options.finish().ok());
  EXPECT_EQ(rate, 0.5);
  EXPECT_TRUE(nesterov);
  EXPECT_EQ(mode, "fast");
}

TEST(Options, what_is_not_given_keeps_its_value) {
  for (const char* text : {"", "   "}) {
    Options options = parse(text);
    double rate = 0.25;
    bool nesterov = true;
    std::string mode = "slow";
    options.number("lr", &rate, 0, 1);
    options.flag("nesterov", &nesterov);
    options.choice("mode", &mode, {"slow", "fast"});
    EXPECT_TRUE(options.finish().ok());
    EXPECT_EQ(rate, 0.25);
    EXPECT_TRUE(nesterov);
    EXPECT_EQ(mode, "slow");
  }
}

TEST(Options, numbers_of_every_form_and_both_ends_of_the_range) {
  const struct {
    const char* text;
    double value;
  } cases[] = {{"x=0", 0}, {"x=1", 1}, {"x=.5", 0.5}, {"x=1e-3", 1e-3}, {"x=0.1", 0.1}, {"x=1.", 1}};
  for (const auto& test : cases) {
    Options options = parse(test.text);
    double value = -1;
    options.number("x", &value, 0, 1);
    EXPECT_TRUE(options.finish().ok()) << test.text;
    EXPECT_EQ(value, test.value) << test.text;
  }
}

TEST(Options, integers_are_whole_and_in_range) {
  for (const auto& [text, expected] :
       {std::pair{"copies=1", 1}, {"copies=8", 8}, {"copies=2.0", 2}, {"", 5}}) {
    Options options = parse(text);
    int32_t copies = 5;
    options.integer("copies", &copies, 1, 8);
    EXPECT_TRUE(options.finish().ok()) << text;
    EXPECT_EQ(copies, expected);
  }
  for (const char* text : {"copies=0", "copies=9", "copies=1.5", "copies=two", "copies="}) {
    Options options = parse(text);
    int32_t copies = 5;
    options.integer("copies", &copies, 1, 8);
    EXPECT_FALSE(options.finish().ok()) << text;
    EXPECT_EQ(copies, 5) << text;
  }
}

TEST(Options, bad_words_are_refused_when_parsed) {
  const struct {
    const char *text, *message;
  } cases[] = {
      {"lr:0.1",
       "option 'lr:0.1' of strategy 'ps' is not key=value; put spaces between options and none around '='"},
      {"lr", "option 'lr' of strategy 'ps' is not key=value; put spaces between options and none around '='"},
      {"=0.1",
       "option '=0.1' of strategy 'ps' is not key=value; put spaces between options and none around '='"},
      {"lr = 0.1",
       "option 'lr' of strategy 'ps' is not key=value; put spaces between options and none around '='"},
      {"lr=1 a=2 lr=1", "option 'lr' of strategy 'ps' is given twice"}};
  for (const auto& test : cases) {
    const auto options = Options::parse(test.text, "strategy 'ps'");
    ASSERT_FALSE(options.ok()) << test.text;
    EXPECT_EQ(options.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(options.status().message(), HasSubstr(test.message));
  }
}

TEST(Options, bad_values_are_errors_that_name_option_owner_and_value_and_leave_the_output) {
  const struct {
    const char *text, *message;
  } cases[] = {
      {"lr=", "option 'lr' of strategy 'ps': '' is not a finite number"},
      {"lr=abc", "'abc' is not a finite number"},
      {"lr=0.1x", "'0.1x' is not a finite number"},
      {"lr=0.1,momentum=0.9",
       "'0.1,momentum=0.9' is not a finite number; put spaces, not commas, between options"},
      {"lr=nan", "'nan' is not a finite number"},
      {"lr=inf", "'inf' is not a finite number"},
      {"lr=1e999", "'1e999' is not a finite number"},
      {"lr=0,1", "'0,1' is not a finite number"},
      {"lr=-0.01", "'-0.01' is not within 0..1"},
      {"lr=1.001", "'1.001' is not within 0..1"},
      {"lr=0.1=2", "'0.1=2' is not a finite number"},
      {"open=-1", "option 'open' of strategy 'ps': '-1' is not at least 0"},
      {"nesterov=yes", "option 'nesterov' of strategy 'ps': 'yes' is not 0 or 1"},
      {"nesterov=", "'' is not 0 or 1"},
      {"nesterov=2", "'2' is not 0 or 1"},
      {"mode=fats", "option 'mode' of strategy 'ps': 'fats' is not one of slow, fast; did you mean 'fast'?"},
      {"mode=turquoise", "'turquoise' is not one of slow, fast"},
      {"mode=", "'' is not one of slow, fast"}};
  for (const auto& test : cases) {
    Options options = parse(test.text);
    double rate = 0.25, open = 0.5;
    bool nesterov = false;
    std::string mode = "slow";
    options.number("lr", &rate, 0, 1);
    options.number("open", &open, 0, std::numeric_limits<double>::max());
    options.flag("nesterov", &nesterov);
    options.choice("mode", &mode, {"slow", "fast"});
    const Status status = options.finish();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << test.text;
    EXPECT_THAT(status.message(), HasSubstr(test.message));
    EXPECT_EQ(status.parameter(), std::string(test.text).substr(0, std::string(test.text).find('=')));
    EXPECT_EQ(rate, 0.25);
    EXPECT_EQ(open, 0.5);
    EXPECT_FALSE(nesterov);
    EXPECT_EQ(mode, "slow");
  }
}

TEST(Options, unknown_keys_are_errors_with_the_nearest_known_one) {
  const struct {
    const char *text, *message;
  } cases[] = {{"momentun=1", "strategy 'ps' has no option 'momentun'; did you mean 'momentum'?"},
               {"Momentum=1", "did you mean 'momentum'?"},
               {"zzzzz=1", "strategy 'ps' has no option 'zzzzz'; it has lr, momentum"}};
  for (const auto& test : cases) {
    Options options = parse(test.text);
    double value = 0;
    options.number("lr", &value, 0, 1);
    options.number("momentum", &value, 0, 1);
    const Status status = options.finish();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(test.message));
  }
  Options none = parse("x=1");
  EXPECT_THAT(none.finish().message(), HasSubstr("has no option 'x'; it has none"));
}

TEST(Options, the_first_bad_value_is_reported) {
  Options options = parse("b=x a=y");
  double value = 0;
  options.number("a", &value, 0, 1);
  options.number("b", &value, 0, 1);
  EXPECT_THAT(options.finish().message(), HasSubstr("option 'a'"));
}

TEST(NumberText, is_the_shortest_that_reads_back) {
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(1e-8), "1e-08");
  EXPECT_EQ(number_text(1.0 / 3), "0.3333333333333333");
}

TEST(NearestName, finds_what_was_most_likely_meant) {
  const std::vector<std::string> names = {"lease", "listen", "heartbeat_interval", "head", "adam",
                                          "adamw", "sgd"};
  const struct {
    const char *given, *meant;
  } cases[] = {{"leaze", "lease"},
               {"laese", "lease"},
               {"LEASE", "lease"},
               {"heartbeat-interval", "heartbeat_interval"},
               {"heartbeat", "heartbeat_interval"},
               {"hartbeat_intervall", "heartbeat_interval"},
               {"adm", "adam"},
               {"adamW", "adamw"},
               {"adamw2", "adamw"},
               {"sdg", "sgd"},
               {"haed", "head"},
               {"xyz", ""},
               {"", ""},
               {"completely_different", ""}};
  for (const auto& test : cases) EXPECT_EQ(nearest_name(test.given, names), test.meant) << test.given;
  EXPECT_EQ(nearest_name("lease", {}), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), names), "");
}

}  // namespace
}  // namespace dsgd

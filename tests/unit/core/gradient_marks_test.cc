#include "core/step/gradient_marks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsgd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Parameters a, b, c and d on two replicas. Bucket 0 has a and b, bucket 1 has b and c; d is frozen.
class GradientMarksTest : public testing::Test {
 protected:
  GradientMarksTest() {
    for (const char* name : {"a", "b", "c", "d"}) {
      auto parameter = std::make_unique<Parameter>();
      parameter->index = static_cast<uint32_t>(model_.parameters.size());
      parameter->name = name;
      model_.parameters.push_back(std::move(parameter));
    }
    for (uint32_t r = 0; r < 2; ++r)
      model_.replicas.push_back(std::make_unique<Replica>(Replica{r, device::Device::host()}));
    plan_[0].parameters = {0, 1};
    plan_[1].parameters = {1, 2};
    EXPECT_TRUE(marks_.set_plan(plan_).ok());
  }

  // Returns the buckets that are complete with these gradients.
  std::vector<uint32_t> mark(uint32_t replica, const std::string& names, bool absent = false) {
    std::vector<uint32_t> complete;
    last_ = marks_.mark(*model_.replicas[replica], parameters(names), absent, nullptr, &complete);
    return complete;
  }
  std::vector<Parameter*> parameters(const std::string& names) {
    std::vector<Parameter*> found;
    for (const char name : names) found.push_back(model_.parameters[static_cast<size_t>(name - 'a')].get());
    return found;
  }

  Model model_;
  std::vector<Bucket> plan_ = std::vector<Bucket>(2);
  GradientMarks marks_{model_};
  Status last_;
};

TEST_F(GradientMarksTest, BucketIsCompleteWhenItsGradientsAreMarkedOnAllReplicas) {
  EXPECT_THAT(mark(0, "abc"), IsEmpty());
  EXPECT_THAT(mark(1, "cb"), ElementsAre(1));
  EXPECT_THAT(marks_.complete_buckets(), ElementsAre(1));
  EXPECT_THAT(mark(1, "a", true), ElementsAre(0));
  EXPECT_TRUE(marks_.is_absent(1, 0));
  EXPECT_FALSE(marks_.is_absent(0, 0));
  EXPECT_TRUE(marks_.unmarked().empty());  // no bucket waits for the frozen one
}

TEST_F(GradientMarksTest, MarksAllOrNone) {
  EXPECT_THAT(mark(0, "b"), IsEmpty());
  EXPECT_THAT(mark(1, "abca"), IsEmpty());
  EXPECT_EQ(last_.code(), Code::kState);
  EXPECT_THAT(last_.message(), HasSubstr("parameter 'a' in replica 1 was marked ready before"));
  EXPECT_THAT(mark(0, "acb"), IsEmpty());
  EXPECT_THAT(last_.message(), HasSubstr("parameter 'b' in replica 0"));
  EXPECT_THAT(marks_.unmarked().text,
              HasSubstr("'a' of replica 0, 'a' of replica 1, 'b' of replica 1 and 2 more"));
  EXPECT_THAT(mark(0, "ac"), IsEmpty());
  EXPECT_THAT(mark(1, "abc"), ElementsAre(0, 1));
}

TEST_F(GradientMarksTest, UnmarkUndoesMarksThatTheStepHasNotSeen) {
  (void)mark(0, "abc");
  EXPECT_THAT(mark(1, "ab"), ElementsAre(0));
  marks_.unmark(*model_.replicas[1], parameters("ab"));
  EXPECT_THAT(marks_.complete_buckets(), IsEmpty());
  EXPECT_THAT(mark(1, "abc"), ElementsAre(0, 1));
}

TEST_F(GradientMarksTest, RestIsReadyAndKeepsAbsences) {
  (void)mark(0, "abc");
  (void)mark(1, "c");
  (void)mark(1, "b", true);
  EXPECT_THAT(marks_.mark_rest(), ElementsAre(0));
  EXPECT_TRUE(marks_.is_absent(1, 1));
  EXPECT_THAT(marks_.mark_rest(), IsEmpty());
  EXPECT_THAT(mark(1, "a"), IsEmpty());
  EXPECT_THAT(last_.message(), HasSubstr("was marked ready before"));
  marks_.unmark_rest();
  EXPECT_THAT(marks_.complete_buckets(), ElementsAre(1));
  EXPECT_THAT(mark(1, "a"), ElementsAre(0));
}

TEST_F(GradientMarksTest, OnlyAbsencesApplyToARepeatedStep) {
  (void)mark(0, "abc", true);
  (void)mark(1, "c", true);
  marks_.mark_rest();
  marks_.clear(false);
  EXPECT_THAT(marks_.complete_buckets(), IsEmpty());
  EXPECT_THAT(mark(1, "b"), ElementsAre(1));
  marks_.clear(true);
  EXPECT_THAT(mark(0, "abc"), IsEmpty());
  EXPECT_THAT(mark(1, "abc"), ElementsAre(0, 1));
}

TEST_F(GradientMarksTest, AbsencesOutliveAChangeOfThePlan) {
  (void)mark(0, "ab", true);
  (void)mark(1, "ab", true);
  std::swap(plan_[0].parameters, plan_[1].parameters);
  ASSERT_TRUE(marks_.set_plan(plan_).ok());
  EXPECT_THAT(marks_.complete_buckets(), ElementsAre(1));
}

}  // namespace
}  // namespace dsgd

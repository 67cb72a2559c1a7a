// Which ranks and parameters are said to differ.

#include "core/step/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace dsgd {
namespace {

using testing::HasSubstr;
using Digests = std::map<int32_t, std::vector<uint64_t>>;

std::unique_ptr<Model> model_of(size_t parameters) {
  auto model = std::make_unique<Model>();
  for (size_t p = 0; p < parameters; ++p) {
    model->parameters.push_back(std::make_unique<Parameter>());
    model->parameters.back()->name = std::string("p") + std::to_string(p);
  }
  return model;
}

std::string found(size_t parameters, const Digests& digests) {
  return find_divergence(*model_of(parameters), digests, "step 7").message();
}

TEST(Divergence, NamesTheRanksThatDifferFromTheMajority) {
  EXPECT_EQ(found(3, {{0, {1, 2, 3}}, {1, {1, 2, 3}}}), "");
  EXPECT_THAT(found(3, {{0, {1, 9, 9}}, {1, {1, 2, 3}}, {2, {1, 2, 3}}}),
              HasSubstr("parameter 'p1' and 1 more of rank 0 against ranks 1, 2;"));
  EXPECT_THAT(found(3, {{3, {1, 2, 3}}, {5, {1, 2, 4}}}),
              HasSubstr("parameter 'p2' of rank 5 against rank 3;"));
}

TEST(Divergence, ADigestThatWasNotReadDiffersFromNone) {
  EXPECT_EQ(found(2, {{0, {kNotRead, 2}}, {1, {1, 2}}, {2, {1, kNotRead}}}), "");
  EXPECT_EQ(found(2, {{0, {kNotRead, kNotRead}}, {1, {1, kNotRead}}}), "");
}

TEST(Divergence, ARankThatHasNotReadTheParameterIsOnNeitherSide) {
  const std::string text = "parameter 'p0' of rank 3 against ranks 0, 2;";
  EXPECT_THAT(found(2, {{0, {1, 2}}, {1, {kNotRead, 2}}, {2, {1, 2}}, {3, {9, 2}}}), HasSubstr(text));
  EXPECT_THAT(found(2, {{1, {kNotRead, 2}}, {2, {1, 2}}, {3, {9, 2}}}),
              HasSubstr("parameter 'p0' of rank 3 against rank 2;"));
  EXPECT_THAT(found(2, {{0, {kNotRead, 2}}, {1, {1, 2}}, {2, {1, 4}}}),
              HasSubstr("parameter 'p1' of rank 2 against ranks 0, 1;"));
}

TEST(Divergence, AFoldedDigestIsNotReadIfOneOfItsParametersIsNot) {
  constexpr size_t kParameters = 20'000;
  std::vector<uint64_t> all(kParameters, 5), some = all;
  some[15'000] = kNotRead;
  const std::vector<uint64_t> folded = fold_digests(all), partly = fold_digests(some);
  ASSERT_LT(folded.size(), kParameters);
  ASSERT_EQ(folded.size(), partly.size());
  size_t not_read = 0;
  for (size_t i = 0; i < folded.size(); ++i) {
    EXPECT_NE(folded[i], kNotRead) << i;
    if (partly[i] == kNotRead) {
      ++not_read;
    } else {
      EXPECT_EQ(partly[i], folded[i]) << i;
    }
  }
  EXPECT_EQ(not_read, 1u);
  EXPECT_EQ(found(kParameters, {{0, folded}, {1, partly}}), "");
}

}  // namespace
}  // namespace dsgd

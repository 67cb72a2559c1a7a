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

TEST(Divergence, ManyParametersShareDigests) {
  constexpr size_t kParameters = 20'000;
  std::vector<uint64_t> all(kParameters, 5), other = all;
  other[15'000] = 6;
  const std::vector<uint64_t> folded = fold_digests(all), differs = fold_digests(other);
  ASSERT_LT(folded.size(), kParameters);
  EXPECT_EQ(found(kParameters, {{0, folded}, {1, folded}}), "");
  const std::string message = found(kParameters, {{0, folded}, {1, differs}});
  EXPECT_THAT(message, HasSubstr(", or one that follows it, of rank 1 against rank 0;"));
  const size_t named = std::stoul(message.substr(message.find("'p") + 2));
  EXPECT_LE(named, 15'000u);
  EXPECT_GT(named, 15'000u - 2 * kParameters / folded.size() - 1);
}

}  // namespace
}  // namespace dsgd

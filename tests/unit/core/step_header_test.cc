// Step headers that no worker of dsgd sends end the step with an error that names their rank.
#include "core/step/header.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "transport/schema/codec.h"

namespace dsgd {
namespace {

using transport::StepHeader;

StepHeader header(std::vector<double> weights) {
  return {7, 1, 2, 3, 4, 0.1, 1, false, std::move(weights), {}};
}

class StepHeaderTest : public ::testing::Test {
 protected:
  HeaderVerdict read(const std::vector<std::vector<std::byte>>& headers) {
    state.request.step = 7;
    std::vector<int32_t> ranks(headers.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    const Group group(std::move(ranks), 0);
    return read_headers(&state, &group, headers);
  }
  // The header of rank 1 is `bytes`, which is wrong in this way.
  void expect_invalid(const std::vector<std::byte>& bytes, const std::string& what) {
    const HeaderVerdict verdict = read({transport::encode(header({32})), bytes});
    EXPECT_EQ(verdict.status.code(), Code::kInternal);
    EXPECT_EQ(verdict.status.rank(), 1);
    EXPECT_EQ(verdict.status.operation(), "step 7");
    EXPECT_NE(verdict.status.message().find("step 7: rank 1 sent an invalid step header: "),
              std::string::npos)
        << verdict.status.message();
    EXPECT_NE(verdict.status.message().find(what), std::string::npos) << verdict.status.message();
  }

  Model model;
  StepState state{model, {}};
};

TEST_F(StepHeaderTest, WeightsOfAllReplicasCount) {
  const HeaderVerdict verdict = read({transport::encode(header({32, 0.5})),
                                      transport::encode(header({0, 16})), transport::encode(header({}))});
  ASSERT_TRUE(verdict.status.ok()) << verdict.status.message();
  EXPECT_EQ(state.total_weight, 48.5);
  EXPECT_EQ(state.contributing_replicas, 3u);
}

TEST_F(StepHeaderTest, TruncatedHeadersNameTheirRank) {
  const auto whole = transport::encode(header({32, 1}));
  for (size_t n = 0; n < whole.size(); ++n) expect_invalid({whole.begin(), whole.begin() + n}, "malformed");
}

TEST_F(StepHeaderTest, InvalidWeightsNameTheirRank) {
  for (const double weight : {-1.0, std::numeric_limits<double>::infinity(), std::nan("")})
    expect_invalid(transport::encode(header({1, weight})), "weight ");
}

}  // namespace
}  // namespace dsgd

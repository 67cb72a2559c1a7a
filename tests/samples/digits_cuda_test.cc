// The arithmetic of samples/c/digits.cu, its kernels run as loops over host memory, against that of
// samples/c/digits.c.
#define main digits_cuda_main
#include DSGD_DIGITS_ON_FAKE
#undef main

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "tests/samples/reference.h"

namespace {

using Buffers = std::array<std::vector<float>, 4>;

Buffers buffers() {
  return {std::vector<float>(kInputs * kHidden), std::vector<float>(kHidden),
          std::vector<float>(kHidden * kClasses), std::vector<float>(kClasses)};
}
std::array<float*, 4> pointers(Buffers& of) {
  return {of[0].data(), of[1].data(), of[2].data(), of[3].data()};
}
Tensors tensors(Buffers& of) { return {of[0].data(), of[1].data(), of[2].data(), of[3].data()}; }

template <typename Element>
void run(int count, const Element& element) {
  for (int index = count; index-- > 0;) element(index);
}

class DigitsCuda : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    read_data(DSGD_DIGITS_DATA);
    reference_read(DSGD_DIGITS_DATA);
  }
  void SetUp() override {
    initialise(value_[0], value_[2], 5);
    for (int j = 0; j < kHidden; ++j) value_[1][j] = 0.001f * static_cast<float>(j - 60);
    for (int c = 0; c < kClasses; ++c) value_[3][c] = 0.01f * static_cast<float>(c);
    // The earlier content of these buffers must not matter.
    for (auto& gradient : gradient_)
      std::fill(gradient.begin(), gradient.end(), std::numeric_limits<float>::quiet_NaN());
  }
  Pass pass(const Data& data, const std::vector<int64_t>& rows) {
    const size_t count = rows.size();
    for (auto* room : {&hidden_, &back_})
      room->assign(count * kHidden, std::numeric_limits<float>::quiet_NaN());
    error_.assign(count * kClasses, std::numeric_limits<float>::quiet_NaN());
    loss_.assign(count, std::numeric_limits<float>::quiet_NaN());
    right_.assign(count, -1);
    return {tensors(value_),   tensors(gradient_), data.pixels.data(),
            data.label.data(), rows.data(),        static_cast<int>(count),
            hidden_.data(),    back_.data(),       error_.data(),
            loss_.data(),      right_.data()};
  }
  static void forward(const Pass& p) {
    run(p.count * kHidden, Hidden{p});
    run(p.count, Classes{p});
  }
  static double backward(const Pass& p) {
    double loss = 0.0;
    forward(p);
    run(1, AddLosses{p, &loss});
    run((kHidden + 1) * kClasses, OutputGradient{p});
    run(p.count * kHidden, Back{p});
    run((kInputs + 1) * kHidden, HiddenGradient{p});
    return loss;
  }

  Buffers value_ = buffers(), gradient_ = buffers();
  std::vector<float> hidden_, back_, error_, loss_;
  std::vector<int> right_;
};

TEST_F(DigitsCuda, ReadsWhatTheCTrainerReads) {
  ASSERT_GT(train.images(), 1000);
  EXPECT_EQ(train.images(), reference_images(0));
  EXPECT_EQ(test.images(), reference_images(1));
}

TEST_F(DigitsCuda, BeginsWithTheSameValuesAsTheCTrainer) {
  Buffers reference = buffers();
  reference_initialise(pointers(reference).data(), 5);
  EXPECT_EQ(value_[0], reference[0]);
  EXPECT_EQ(value_[2], reference[2]);
}

TEST_F(DigitsCuda, GradientsAreThoseOfTheCTrainer) {
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{3}, {1436, 0, 700, 701, 13, 5, 900}}) {
    SCOPED_TRACE(rows.size());
    Buffers reference = buffers();
    const double expected =
        reference_backward(pointers(value_).data(), pointers(reference).data(), rows.data(), rows.size());
    EXPECT_NEAR(backward(pass(train, rows)), expected, 1e-5 * expected);
    for (int t = 0; t < 4; ++t) {
      float largest = 0.0f;
      for (float slope : reference[t]) largest = std::max(largest, std::fabs(slope));
      ASSERT_GT(largest, 0.0f);
      for (size_t i = 0; i < reference[t].size(); ++i) {
        ASSERT_NEAR(gradient_[t][i], reference[t][i], 1e-5f * largest) << "tensor " << t << ", element " << i;
      }
    }
  }
}

TEST_F(DigitsCuda, GradientsAreDifferencesOfTheLoss) {
  const std::vector<int64_t> rows = {10, 20, 30, 40};
  backward(pass(train, rows));
  const auto loss = [&] {
    const Pass p = pass(train, rows);
    double sum = 0.0;
    forward(p);
    run(1, AddLosses{p, &sum});
    return sum / static_cast<double>(rows.size());
  };
  for (int t = 0; t < 4; ++t) {
    size_t steepest = 0;
    for (size_t i = 0; i < gradient_[t].size(); ++i) {
      if (std::fabs(gradient_[t][i]) > std::fabs(gradient_[t][steepest])) steepest = i;
    }
    const float before = value_[t][steepest], h = 1e-2f, slope = gradient_[t][steepest];
    value_[t][steepest] = before + h;
    const double above = loss();
    value_[t][steepest] = before - h;
    const double below = loss();
    value_[t][steepest] = before;
    EXPECT_NEAR((above - below) / (2.0 * h), slope, 0.01 * std::fabs(slope)) << "tensor " << t;
  }
}

TEST_F(DigitsCuda, AShareWithoutImagesHasNoGradient) {
  EXPECT_EQ(backward(pass(train, {})), 0.0);
  for (const auto& gradient : gradient_) EXPECT_EQ(gradient, std::vector<float>(gradient.size(), 0.0f));
}

TEST_F(DigitsCuda, CountsTheSameImagesRightAsTheCTrainer) {
  std::vector<int64_t> rows(test.images());
  for (size_t n = 0; n < rows.size(); ++n) rows[n] = static_cast<int64_t>(n);
  forward(pass(test, rows));
  int right = 0;
  for (int one : right_) right += one;
  EXPECT_DOUBLE_EQ(100.0 * right / test.images(), reference_accuracy(pointers(value_).data()));
}

}  // namespace

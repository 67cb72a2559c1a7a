#include "core/optimizer/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "core/config/config.h"
#include "core/optimizer/apply.h"
#include "core/optimizer/update.h"

namespace dsgd {
namespace {

using testing::HasSubstr;

template <typename T>
using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <typename T>
constexpr DType kDType = sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;

template <typename T>
std::vector<T> decode(const std::string& text) {
  std::vector<T> numbers;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    numbers.push_back(std::bit_cast<T>(static_cast<Bits<T>>(std::stoull(word, nullptr, 16))));
  return numbers;
}

template <typename T>
using Tensors = std::vector<std::vector<T>>;

std::unique_ptr<Optimizer> make(const std::string& name, const std::string& options) {
  auto optimizer = Optimizer::make(name, options);
  EXPECT_TRUE(optimizer.ok()) << optimizer.status().message();
  return std::move(optimizer).value();
}

template <typename T>
void apply(const Optimizer& optimizer, uint64_t updates, const std::vector<T>& gradient,
           std::vector<T>& value, Tensors<T>& state, const ParameterSettings& settings = {}) {
  std::vector<const void*> in;
  std::vector<void*> out;
  for (auto& tensor : state) in.push_back(tensor.data()), out.push_back(tensor.data());
  dsgd::apply(optimizer.rule(updates, settings), kDType<T>, value.size(), gradient.data(), value.data(),
              value.data(), in, out);
}

const nlohmann::json& recorded() {
  static const nlohmann::json document = [] {
    std::ifstream file(DSGD_RECORDED_OPTIMIZERS);
    return nlohmann::json::parse(file);
  }();
  return document;
}

std::string title(const nlohmann::json& test) {
  return test["optimizer"].get<std::string>() + " " + test["options"].get<std::string>();
}

// Difference in units in the last place of the largest number in the computation. That is the measure, and
// not the result alone, since PyTorch fuses products with sums where the machine can: one rounding of an
// operand less, which weighs more when operands cancel.
template <typename T>
double distance(T ours, T theirs, T largest_operand) {
  const T size = std::max(
      {std::fabs(ours), std::fabs(theirs), std::fabs(largest_operand), std::numeric_limits<T>::min()});
  const T ulp = std::nextafter(size, std::numeric_limits<T>::infinity()) - size;
  return static_cast<double>(std::fabs(ours - theirs) / ulp);
}

// Largest operands of one element's step, from PyTorch's state before it.
struct Operands {
  double gradient = 0;  // of the gradient with coupled weight decay
  double change = 0;    // of SGD's change of the value
};
Operands operands_of(const nlohmann::json& test, double gradient, double value, double buffer) {
  double rate = 0.01, decay = 0, momentum = 0;
  auto options = Options::parse(test["options"].get<std::string>(), "test");
  options->number("lr", &rate, 0, 1);
  options->number("weight_decay", &decay, 0, 1);
  options->number("momentum", &momentum, 0, 1);
  Operands operands;
  operands.gradient = std::max(std::fabs(gradient), decay * std::fabs(value));
  if (test["optimizer"] == "sgd")
    operands.change =
        rate * (operands.gradient + momentum * (momentum * std::fabs(buffer) + operands.gradient));
  return operands;
}

template <typename T>
class RecordedOptimizer : public testing::Test {
 protected:
  void SetUp() override {
    const auto& document = recorded()["dtypes"][sizeof(T) == 4 ? "float32" : "float64"];
    values_ = decode<T>(document["values"]);
    for (const auto& gradient : document["gradients"]) gradients_.push_back(decode<T>(gradient));
    cases_ = document["cases"];
  }
  std::vector<T> values_;
  Tensors<T> gradients_;
  nlohmann::json cases_;
};

using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(RecordedOptimizer, Types);

TYPED_TEST(RecordedOptimizer, each_step_is_within_two_ulp_of_pytorch) {
  using T = TypeParam;
  ASSERT_GE(this->cases_.size(), 18u);
  for (const auto& test : this->cases_) {
    SCOPED_TRACE(title(test));
    const auto optimizer = make(test["optimizer"], test["options"]);
    const size_t states = static_cast<size_t>(optimizer->state_count());
    std::vector<T> value = this->values_;
    Tensors<T> state(states, std::vector<T>(value.size()));
    ASSERT_GE(test["steps"].size(), 10u);
    for (size_t step = 0; step < test["steps"].size(); ++step) {
      const auto& expected = test["steps"][step];
      const auto& gradient = this->gradients_[step];
      ASSERT_EQ(expected["states"].size(), states);
      const std::vector<T> value_before = value;
      const Tensors<T> state_before = state;
      apply(*optimizer, step, gradient, value, state);
      // Each step is compared by itself: the next one starts from PyTorch's result.
      const auto compare = [&](std::vector<T>& ours, const std::string& text, auto largest_operand) {
        const std::vector<T> theirs = decode<T>(text);
        ASSERT_EQ(theirs.size(), ours.size());
        for (size_t i = 0; i < ours.size(); ++i)
          EXPECT_LE(distance(ours[i], theirs[i], static_cast<T>(largest_operand(i))), 2)
              << "step " << step << ", element " << i;
        ours = theirs;
      };
      const auto operands = [&](size_t i) {
        return operands_of(test, gradient[i], value_before[i], states ? state_before[0][i] : 0);
      };
      compare(value, expected["value"],
              [&](size_t i) { return std::max<double>(std::fabs(value_before[i]), operands(i).change); });
      for (size_t s = 0; s < states; ++s)
        compare(state[s], expected["states"][s], [&](size_t i) {
          // The first is of the gradient's size, the others of its square's.
          const double power = s == 0 ? 1 : 2;
          return std::max<double>(std::fabs(state_before[s][i]), std::pow(operands(i).gradient, power));
        });
    }
  }
}

TYPED_TEST(RecordedOptimizer, whole_runs_end_where_pytorch_ends) {
  using T = TypeParam;
  for (const auto& test : this->cases_) {
    SCOPED_TRACE(title(test));
    const auto optimizer = make(test["optimizer"], test["options"]);
    std::vector<T> value = this->values_;
    Tensors<T> state(static_cast<size_t>(optimizer->state_count()), std::vector<T>(value.size()));
    for (size_t step = 0; step < test["steps"].size(); ++step)
      apply(*optimizer, step, this->gradients_[step], value, state);
    const std::vector<T> theirs = decode<T>(test["steps"].back()["value"]);
    for (size_t i = 0; i < value.size(); ++i) {
      const double scale = std::max<double>(1, std::fabs(theirs[i]));
      EXPECT_NEAR(value[i], theirs[i], 64 * scale * std::numeric_limits<T>::epsilon()) << "element " << i;
    }
  }
}

TEST(Optimizer, apply_gives_the_same_bits_in_place_and_in_pieces_as_in_one_piece_elsewhere) {
  for (const auto& [name, options] :
       std::vector<std::pair<std::string, std::string>>{{"sgd", ""},
                                                        {"sgd", "momentum=0.9 nesterov=1 weight_decay=0.1"},
                                                        {"adam", "weight_decay=0.1"},
                                                        {"adamw", "amsgrad=1"}}) {
    const auto optimizer = make(name, options);
    const size_t count = 1003, states = static_cast<size_t>(optimizer->state_count());
    std::vector<float> gradient(count), value(count);
    for (size_t i = 0; i < count; ++i)
      gradient[i] = std::sin(static_cast<float>(i)), value[i] = std::cos(static_cast<float>(i));
    for (uint64_t updates : {0, 1, 7}) {
      Tensors<float> state(states, std::vector<float>(count, updates ? 0.25f : 0.0f)), state_out = state;
      std::vector<float> out(count);
      std::vector<const void*> in_pointers;
      std::vector<void*> out_pointers;
      for (size_t s = 0; s < states; ++s)
        in_pointers.push_back(state[s].data()), out_pointers.push_back(state_out[s].data());
      const Tensors<float> state_before = state;
      const std::vector<float> value_before = value;
      apply(optimizer->rule(updates, {}), DType::kFloat32, count, gradient.data(), value.data(), out.data(),
            in_pointers, out_pointers);
      EXPECT_EQ(value, value_before);
      EXPECT_EQ(state, state_before);
      std::vector<float> pieces = value;
      for (size_t begin = 0; begin < count; begin += 37) {
        const size_t part = std::min<size_t>(37, count - begin);
        std::vector<const void*> in;
        std::vector<void*> outs;
        for (auto& tensor : state) in.push_back(tensor.data() + begin), outs.push_back(tensor.data() + begin);
        apply(optimizer->rule(updates, {}), DType::kFloat32, part, gradient.data() + begin,
              pieces.data() + begin, pieces.data() + begin, in, outs);
      }
      EXPECT_EQ(pieces, out) << name << " " << options;
      EXPECT_EQ(state, state_out) << name << " " << options;
    }
  }
}

// The library picks a version for the machine; this program contains the portable one.
TYPED_TEST(RecordedOptimizer, every_instruction_set_gives_the_bits_of_the_element_function) {
  using T = TypeParam;
  const size_t count = 1001;
  std::vector<T> gradient(count), value(count);
  for (size_t i = 0; i < count; ++i)
    gradient[i] = std::sin(static_cast<T>(i)), value[i] = std::cos(static_cast<T>(3 * i));
  Tensors<T> state(2, std::vector<T>(count));
  for (size_t i = 0; i < count; ++i)
    state[0][i] = std::sin(static_cast<T>(7 * i)), state[1][i] = state[0][i] * state[0][i];

  Tensors<T> sgd_state{state[0]}, sgd_expected = sgd_state;
  std::vector<T> sgd_value = value, sgd_value_expected = value;
  apply(*make("sgd", "lr=0.1 momentum=0.9 nesterov=1 weight_decay=0.01"), 1, gradient, sgd_value, sgd_state);
  const update::SgdCoefficients<T> sgd{static_cast<T>(-0.1), static_cast<T>(0.01), static_cast<T>(0.9), T{1}};
  for (size_t i = 0; i < count; ++i)
    sgd_value_expected[i] = update::sgd<true, update::Momentum::kRunning, true>(
        sgd, gradient[i], value[i], state[0][i], &sgd_expected[0][i]);
  EXPECT_EQ(sgd_value, sgd_value_expected);
  EXPECT_EQ(sgd_state, sgd_expected);

  Tensors<T> adam_state = state, adam_expected = state;
  std::vector<T> adam_value = value, adam_value_expected = value;
  apply(*make("adamw", "lr=0.1 beta1=0.75 beta2=0.875 weight_decay=0.5"), 1, gradient, adam_value,
        adam_state);
  update::AdamCoefficients<T> adam{};
  adam.minus_step = static_cast<T>(-(0.1 / (1 - 0.75 * 0.75)));
  adam.keep = static_cast<T>(1 - 0.1 * 0.5);
  adam.mean_part = T{0.25};
  adam.mean_keep = T{0.75};
  adam.mean_part_small = true;
  adam.square_keep = T{0.875};
  adam.square_part = T{0.125};
  adam.correction = static_cast<T>(std::sqrt(1 - 0.875 * 0.875));
  adam.epsilon = static_cast<T>(1e-8);
  for (size_t i = 0; i < count; ++i) {
    T unused = 0;
    adam_value_expected[i] = update::adam<update::Decay::kDecoupled, false>(
        adam, gradient[i], value[i], &adam_expected[0][i], &adam_expected[1][i], &unused);
  }
  EXPECT_EQ(adam_value, adam_value_expected);
  EXPECT_EQ(adam_state, adam_expected);
}

TEST(Optimizer, settings_multiply_the_rate_replace_the_decay_and_freeze) {
  const std::vector<double> gradient{2};
  Tensors<double> none;
  const auto sgd = make("sgd", "lr=0.5 weight_decay=0.25");
  const auto after = [&](const ParameterSettings& settings) {
    std::vector<double> value{8};
    apply(*sgd, 0, gradient, value, none, settings);
    return value[0];
  };
  EXPECT_EQ(after({}), 8 - 0.5 * (2 + 0.25 * 8));
  EXPECT_EQ(after({.rate = 0.5}), 8 - 0.25 * (2 + 0.25 * 8));
  EXPECT_EQ(after({.rate = 0}), 8);
  EXPECT_EQ(after({.decay = 0}), 8 - 0.5 * 2);
  EXPECT_EQ(after({.decay = 0.5}), 8 - 0.5 * (2 + 0.5 * 8));
  EXPECT_EQ(after({.frozen = true}), 8);

  // AdamW's decay uses the multiplied rate; Adam's first step moves by the rate against the gradient's sign.
  const auto adamw = make("adamw", "lr=0.5 eps=0 weight_decay=0.25");
  std::vector<double> value{8};
  Tensors<double> state(2, std::vector<double>(1));
  apply(*adamw, 0, gradient, value, state, {.rate = 0.5});
  EXPECT_NEAR(value[0], 8 * (1 - 0.25 * 0.25) - 0.25, 1e-14);
}

TEST(Optimizer, frozen_copies_values_and_state_to_other_buffers) {
  const auto adam = make("adam", "");
  const std::vector<float> gradient{NAN, 1}, value{3, 4}, mean{5, 6}, square{7, 8};
  std::vector<float> value_out(2), mean_out(2), square_out(2);
  const std::vector<const void*> in{mean.data(), square.data()};
  const std::vector<void*> out{mean_out.data(), square_out.data()};
  apply(adam->rule(3, {.frozen = true}), DType::kFloat32, 2, gradient.data(), value.data(), value_out.data(),
        in, out);
  EXPECT_EQ(value_out, value);
  EXPECT_EQ(mean_out, mean);
  EXPECT_EQ(square_out, square);
}

TEST(Optimizer, learning_rate_can_be_set_between_steps) {
  const auto sgd = make("sgd", "lr=0.5");
  EXPECT_EQ(sgd->learning_rate(), 0.5);
  sgd->set_learning_rate(0.25);
  std::vector<double> value{1};
  Tensors<double> none;
  apply(*sgd, 0, {2.0}, value, none);
  EXPECT_EQ(value[0], 0.5);
  EXPECT_THAT(sgd->describe(), HasSubstr("lr=0.25"));
}

TEST(Optimizer, nan_and_infinity_reach_the_values_and_only_their_own_elements) {
  for (const char* name : {"sgd", "adam", "adamw"}) {
    const auto optimizer = make(name, "");
    std::vector<float> value(9, 1.0f), gradient(9, 0.5f);
    gradient[4] = NAN;
    Tensors<float> state(static_cast<size_t>(optimizer->state_count()), std::vector<float>(9));
    apply(*optimizer, 0, gradient, value, state);
    for (size_t i = 0; i < value.size(); ++i) EXPECT_EQ(std::isnan(value[i]), i == 4) << name << " " << i;
  }
  const auto amsgrad = make("adam", "amsgrad=1");
  std::vector<float> value(2, 1.0f);
  Tensors<float> state(3, std::vector<float>(2));
  apply(*amsgrad, 0, {NAN, 1.0f}, value, state);
  apply(*amsgrad, 1, {1.0f, 1.0f}, value, state);
  EXPECT_TRUE(std::isnan(state[2][0]));  // as torch.maximum
  EXPECT_FALSE(std::isnan(value[1]));
}

TEST(Optimizer, zero_elements_are_fine) {
  for (const char* name : {"sgd", "adam", "none"}) {
    const auto optimizer = make(name, "");
    std::vector<const void*> in(static_cast<size_t>(optimizer->state_count()), nullptr);
    std::vector<void*> out(in.size(), nullptr);
    apply(optimizer->rule(0, {}), DType::kFloat32, 0, nullptr, nullptr, nullptr, in, out);
    apply(optimizer->rule(0, {.frozen = true}), DType::kFloat64, 0, nullptr, nullptr, nullptr, in, out);
  }
}

TEST(Optimizer, none_leaves_values_alone) {
  const auto none = make("none", "");
  EXPECT_TRUE(none->is_none());
  EXPECT_FALSE(make("sgd", "")->is_none());
  std::vector<float> value{1, 2};
  Tensors<float> state;
  apply(*none, 0, {5.0f, 5.0f}, value, state);
  EXPECT_EQ(value, (std::vector<float>{1, 2}));
}

TEST(Optimizer, describe_names_every_option_with_its_effective_value) {
  EXPECT_EQ(make("sgd", "")->describe(), "sgd lr=0.01 momentum=0 dampening=0 nesterov=0 weight_decay=0");
  EXPECT_EQ(make("sgd", "nesterov=1 lr=1e-1 momentum=0.90")->describe(),
            "sgd lr=0.1 momentum=0.9 dampening=0 nesterov=1 weight_decay=0");
  EXPECT_EQ(make("adam", "")->describe(),
            "adam lr=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0 amsgrad=0");
  EXPECT_EQ(make("adamw", "amsgrad=1")->describe(),
            "adamw lr=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.01 amsgrad=1");
  EXPECT_EQ(make("none", "")->describe(), "none");
}

TEST(Optimizer, state_counts) {
  EXPECT_EQ(make("sgd", "")->state_count(), 0);
  EXPECT_EQ(make("sgd", "momentum=0.9")->state_count(), 1);
  EXPECT_EQ(make("adam", "")->state_count(), 2);
  EXPECT_EQ(make("adamw", "amsgrad=1")->state_count(), 3);
  EXPECT_EQ(make("none", "")->state_count(), 0);
}

TEST(Optimizer, bad_names_and_options_are_refused_with_a_remedy) {
  const struct {
    const char *name, *options, *message;
  } cases[] = {
      {"adm", "", "unknown optimizer 'adm'; did you mean 'adam'?"},
      {"SGD", "", "did you mean 'sgd'?"},
      {"lbfgs", "", "there are sgd, adam, adamw and none"},
      {"", "", "unknown optimizer ''"},
      {"sgd, lr=0.1", "", "unknown optimizer 'sgd, lr=0.1'; give sgd, adam"},
      {"sgd", "lr:0.1", "option 'lr:0.1' of optimizer 'sgd' is not key=value"},
      {"sgd", "momentun=0.9", "optimizer 'sgd' has no option 'momentun'; did you mean 'momentum'?"},
      {"sgd", "beta1=0.9", "optimizer 'sgd' has no option 'beta1'; it has lr, momentum, dampening, nesterov"},
      {"sgd", "lr=-1", "option 'lr' of optimizer 'sgd': '-1' is not at least 0"},
      {"sgd", "lr=nan", "'nan' is not a finite number"},
      {"sgd", "lr=", "'' is not a finite number"},
      {"sgd", "lr=0.1 lr=0.2", "option 'lr' of optimizer 'sgd' is given twice"},
      {"sgd", "nesterov=1", "nesterov=1 needs a momentum above 0 and no dampening"},
      {"sgd", "nesterov=1 momentum=0.9 dampening=0.1", "dampening is 0.1"},
      {"sgd", "nesterov=true", "'true' is not 0 or 1"},
      {"sgd", "dampening=1.5", "is not within 0..1"},
      {"adam", "beta1=1", "option 'beta1' of optimizer 'adam'"},
      {"adam", "beta2=1.5", "option 'beta2' of optimizer 'adam'"},
      {"adamw", "eps=-1e-8", "option 'eps' of optimizer 'adamw'"},
      {"none", "lr=0.1", "optimizer 'none' has no option 'lr'; it has none"},
  };
  for (const auto& test : cases) {
    const auto optimizer = Optimizer::make(test.name, test.options);
    ASSERT_FALSE(optimizer.ok()) << test.name << " " << test.options;
    EXPECT_EQ(optimizer.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(optimizer.status().message(), HasSubstr(test.message));
  }
}

}  // namespace
}  // namespace dsgd

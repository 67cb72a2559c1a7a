// The result of a step, and the gradients that a step still waits for.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace dsgd {

struct StepResult {
  int64_t step = 0;
  int64_t view = 0;
  int32_t size = 0;
  bool applied = false;
  bool all_done = false;
  bool stop = false;
  double weight = 0;
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();
};

// Gradients of a step in flight that are not marked: the step cannot end before they are.
struct UnmarkedGradients {
  static constexpr const char* kRemedy = "; mark every gradient as ready or absent, or call dsgd_step_flush";
  std::string parameter;  // of the first one; empty if all are marked
  std::string text;       // "gradient 'b' was not marked"
  bool empty() const { return text.empty(); }
};

}  // namespace dsgd

// The result of a step, and the gradients that a step still waits for.
#pragma once

#include <cstdint>
#include <string>

#include "transport/payloads.h"

namespace dsgd {

struct StepResult : transport::StepOutcome {
  int64_t step = 0;
  std::string nonfinite_text;  // which ranks and parameters
};

// Gradients of a step in flight that are not marked: the step cannot end before they are.
struct UnmarkedGradients {
  static constexpr const char* kRemedy = "; mark every gradient as ready or absent, or call dsgd_step_flush";
  std::string parameter;  // of the first one; empty if all are marked
  std::string text;       // "gradient 'b' was not marked"
  bool empty() const { return text.empty(); }
};

}  // namespace dsgd

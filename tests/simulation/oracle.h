// The expected results of a job, written without a line of the code under test: plain loops over all workers.
//
// Gradients are small integers, the weights of a step add up to a power of two, rates and momenta are powers
// of two: every sum and quotient is exact in float, in any order, so that "right" means the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dsgd::simulation {

struct Shape {
  uint64_t seed = 0;
  int workers = 1;
  int replicas = 1;
  std::vector<size_t> tensors;  // elements of each parameter
  int steps = 0;
  double rate = 0.5, momentum = 0;
};

float initial_value(const Shape& shape, int worker, size_t tensor, size_t i);
float gradient(const Shape& shape, int step, int worker, int replica, size_t tensor, size_t i);
double weight(const Shape& shape, int step, int worker);

class Oracle {
 public:
  explicit Oracle(const Shape& shape);
  // Values of all tensors, one after the other, after `steps` steps; 0: what start gives to everybody.
  const std::vector<float>& values(int steps) const { return values_[static_cast<size_t>(steps)]; }

 private:
  std::vector<std::vector<float>> values_;
};

}  // namespace dsgd::simulation

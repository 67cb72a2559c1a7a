#include "oracle.h"

namespace dsgd::simulation {
namespace {

uint64_t mix(uint64_t x) {
  x ^= x >> 31;
  x *= 0x7fb5d329728ea185u;
  x ^= x >> 27;
  x *= 0x81dadef4bc2dd44du;
  return x ^ x >> 33;
}

uint64_t mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { return mix(a + mix(b + mix(c + mix(d + 1)))); }

// Weights whose sum is a power of two, for 1 to 5 workers.
constexpr double kWeights[5][5] = {{1}, {1, 3}, {1, 2, 1}, {1, 0, 2, 1}, {1, 1, 4, 1, 1}};

}  // namespace

float initial_value(const Shape& shape, int worker, size_t tensor, size_t i) {
  return static_cast<float>(mix(shape.seed, static_cast<uint64_t>(worker), tensor, i) % 33) - 16.0f;
}

float gradient(const Shape& shape, int step, int worker, int replica, size_t tensor, size_t i) {
  const uint64_t who =
      static_cast<uint64_t>(step) << 32 | static_cast<uint64_t>(worker) << 8 | static_cast<uint64_t>(replica);
  return static_cast<float>(mix(shape.seed ^ 0x5bd1e995, who, tensor, i) % 17) - 8.0f;
}

double weight(const Shape& shape, int step, int worker) {
  return kWeights[shape.workers - 1][(worker + step) % shape.workers];
}

Oracle::Oracle(const Shape& shape) {
  std::vector<double> value;
  for (size_t t = 0; t < shape.tensors.size(); ++t) {
    for (size_t i = 0; i < shape.tensors[t]; ++i) value.push_back(initial_value(shape, 0, t, i));
  }
  std::vector<double> velocity(value.size());
  values_.emplace_back(value.begin(), value.end());
  for (int step = 0; step < shape.steps; ++step) {
    double total = 0;
    for (int w = 0; w < shape.workers; ++w) total += weight(shape, step, w);
    size_t k = 0;
    for (size_t t = 0; t < shape.tensors.size(); ++t) {
      for (size_t i = 0; i < shape.tensors[t]; ++i, ++k) {
        double sum = 0;
        for (int w = 0; w < shape.workers; ++w) {
          for (int r = 0; r < shape.replicas; ++r) {
            sum += weight(shape, step, w) / shape.replicas * gradient(shape, step, w, r, t, i);
          }
        }
        const double mean = sum / total;
        velocity[k] = step == 0 ? mean : shape.momentum * velocity[k] + mean;
        value[k] -= shape.rate * (shape.momentum == 0 ? mean : velocity[k]);
      }
    }
    values_.emplace_back(value.begin(), value.end());
  }
}

}  // namespace dsgd::simulation

// A plot of a training run as an SVG file: loss and test accuracy over epochs.
#pragma once

#include <string>
#include <vector>

namespace job {

struct Curve {
  std::vector<double> loss;      // per epoch, mean over all samples
  std::vector<double> accuracy;  // per epoch, percent
};

// False when the file cannot be written.
bool write_plot(const std::string& path, const std::string& title, const Curve& curve);

}  // namespace job

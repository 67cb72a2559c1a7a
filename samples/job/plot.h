// A plot of a training run as an SVG file: loss and test accuracy over epochs.
#pragma once

#include <string>
#include <vector>

namespace job {

struct Curve {                   // NaN: of an epoch that the worker has not reported
  std::vector<double> loss;      // per epoch, mean over all samples
  std::vector<double> accuracy;  // per epoch, percent
};

struct Event {
  double epoch;
  bool is_kill;  // of a worker; else one has joined
};

// False when the file cannot be written.
bool write_plot(const std::string& path, const std::string& title, const Curve& curve,
                const std::vector<Event>& events);

}  // namespace job

// The factor by which the host multiplies its loss, so that gradients of half types neither underflow nor
// lose bits. Their mean is divided by it again. A step whose mean gradient is not finite is left out on all
// workers alike, and a dynamic factor follows: Micikevicius et al. 2018, "Mixed Precision Training", with the
// numbers of PyTorch's GradScaler.
#pragma once

#include <atomic>
#include <string>

namespace dsgd {

class LossScale {
 public:
  static constexpr double kFirst = 65536, kGrowth = 2, kBackoff = 0.5;
  static constexpr int kInterval = 2000;  // steps without overflow after which it grows
  static constexpr double kLeast = 1.0 / 65536, kLargest = 0x1p64;

  // "off", "dynamic" or a number, as the configuration has checked it.
  void configure(std::string text);
  const std::string& text() const { return text_; }
  // Returns whether loss scaling is configured; gradients are then checked for overflow even if the factor is
  // 1.
  bool on() const { return text_ != "off"; }
  double factor() const { return factor_.load(std::memory_order_relaxed); }  // any thread
  bool dynamic() const { return text_ == "dynamic"; }
  // A step has ended in which at least one replica had a weight above 0.
  void stepped(bool finite);
  // Steps since the factor has changed. Another worker, or a job that loads a checkpoint, continues from the
  // factor and this; only a dynamic factor changes.
  int age() const { return since_; }
  void restore(double factor, int age);

 private:
  std::string text_ = "off";
  std::atomic<double> factor_{1};
  int since_ = 0;  // steps since it has changed
};

}  // namespace dsgd

// Writes the text format of OpenMetrics 1.0, which Prometheus reads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsgd::metrics {

class OpenMetrics {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string>>;

  explicit OpenMetrics(std::string prefix) : prefix_(std::move(prefix)) {}  // of all names

  // A family begins; its samples follow. A counter's samples have the suffix "_total", an info's "_info".
  // `unit` ends the name, or is empty.
  void counter(std::string_view name, std::string_view unit, std::string_view help) {
    family(name, "counter", unit, help);
  }
  void gauge(std::string_view name, std::string_view unit, std::string_view help) {
    family(name, "gauge", unit, help);
  }
  void info(std::string_view name, std::string_view help) { family(name, "info", "", help); }

  void sample(const Labels& labels, uint64_t value);
  void sample(const Labels& labels, double value);

  std::string text() && { return std::move(text_) + "# EOF\n"; }

 private:
  void family(std::string_view name, std::string_view type, std::string_view unit, std::string_view help);
  void line(const Labels& labels, std::string_view value);

  const std::string prefix_;
  std::string text_, name_;  // of the samples
};

}  // namespace dsgd::metrics

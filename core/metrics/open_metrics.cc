#include "core/metrics/open_metrics.h"

#include <charconv>

namespace dsgd::metrics {
namespace {

void append_escaped(std::string& text, std::string_view value) {
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
}

}  // namespace

void OpenMetrics::family(std::string_view name, std::string_view type, std::string_view unit,
                         std::string_view help) {
  const std::string full = prefix_ + std::string(name);
  text_ += "# TYPE " + full + ' ' + std::string(type) + '\n';
  if (!unit.empty()) text_ += "# UNIT " + full + ' ' + std::string(unit) + '\n';
  text_ += "# HELP " + full + ' ' + std::string(help) + '\n';
  name_ = full + (type == "counter" ? "_total" : type == "info" ? "_info" : "");
}

void OpenMetrics::line(const Labels& labels, std::string_view value) {
  text_ += name_;
  char separator = '{';
  for (const auto& [name, label] : labels) {
    text_ += std::exchange(separator, ',');
    text_ += name;
    text_ += "=\"";
    append_escaped(text_, label);
    text_ += '"';
  }
  if (!labels.empty()) text_ += '}';
  text_ += ' ';
  text_ += value;
  text_ += '\n';
}

void OpenMetrics::sample(const Labels& labels, uint64_t value) { line(labels, std::to_string(value)); }

void OpenMetrics::sample(const Labels& labels, double value) {
  char digits[32];
  const auto written = std::to_chars(digits, digits + sizeof digits, value);
  line(labels, {digits, written.ptr});
}

}  // namespace dsgd::metrics

#include "plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

namespace job {
namespace {

constexpr double kLeft = 70, kTop = 50, kWidth = 360, kHeight = 240, kGap = 110;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// A step of 1, 2 or 5 times a power of ten that divides the span into about five.
double tick_step(double span) {
  const double raw = std::max(span, 1e-9) / 5, power = std::pow(10, std::floor(std::log10(raw)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

void panel(std::ofstream& out, double left, const std::string& label, const std::string& colour,
           const std::vector<double>& values, double low, double high, const std::vector<Event>& events) {
  const size_t epochs = values.size();
  const auto x = [&](double epoch) {
    return left + kWidth * (epoch - 1) / std::max<double>(1, static_cast<double>(epochs) - 1);
  };
  const auto y = [&](double value) {
    return kTop + kHeight * (high - std::clamp(value, low, high)) / (high - low);
  };
  out << "<text x='" << left << "' y='" << kTop - 12 << "' class='label'>" << label << "</text>\n";
  const double step = tick_step(high - low);
  for (double tick = std::ceil(low / step) * step; tick <= high + step * 1e-6; tick += step) {
    out << "<line x1='" << left << "' x2='" << left + kWidth << "' y1='" << y(tick) << "' y2='" << y(tick)
        << "' class='grid'/><text x='" << left - 8 << "' y='" << y(tick) + 4 << "' text-anchor='end'>"
        << number(tick) << "</text>\n";
  }
  const double epoch_step = std::max(1.0, std::ceil(tick_step(static_cast<double>(epochs))));
  for (double epoch = epoch_step; epoch <= static_cast<double>(epochs); epoch += epoch_step) {
    out << "<text x='" << x(epoch) << "' y='" << kTop + kHeight + 18 << "' text-anchor='middle'>"
        << number(epoch) << "</text>\n";
  }
  for (const Event& event : events) {
    const double at = x(std::min(event.epoch, static_cast<double>(epochs)));
    out << "<line x1='" << at << "' x2='" << at << "' y1='" << kTop << "' y2='" << kTop + kHeight
        << "' class='" << (event.is_kill ? "killed" : "joined") << "'/>\n";
  }
  out << "<text x='" << left + kWidth / 2 << "' y='" << kTop + kHeight + 38
      << "' text-anchor='middle'>epoch</text>\n"
      << "<polyline fill='none' stroke='" << colour << "' stroke-width='2' points='";
  for (size_t i = 0; i < epochs; ++i) out << x(static_cast<double>(i) + 1) << ',' << y(values[i]) << ' ';
  out << "'/>\n";
}

}  // namespace

bool write_plot(const std::string& path, const std::string& title, const Curve& curve,
                const std::vector<Event>& events) {
  std::ofstream out(path);
  const double width = kLeft + 2 * kWidth + kGap + 30, height = kTop + kHeight + 60;
  out << "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 " << width << ' ' << height << "' width='"
      << width << "' height='" << height << "'>\n"
      << "<style>text{font:12px sans-serif;fill:#333}.label{font-weight:bold}.grid{stroke:#ddd}"
      << ".killed{stroke:#d62728}.joined{stroke:#2ca02c;stroke-dasharray:4}</style>\n"
      << "<rect width='100%' height='100%' fill='white'/>\n<text x='" << kLeft << "' y='20' font-size='14'>"
      << title << "</text>\n";
  if (!curve.loss.empty()) {
    const double highest = *std::max_element(curve.loss.begin(), curve.loss.end());
    panel(out, kLeft, "training loss (cross-entropy)", "#1f77b4", curve.loss, 0, highest > 0 ? highest : 1,
          events);
    const double lowest = *std::min_element(curve.accuracy.begin(), curve.accuracy.end());
    panel(out, kLeft + kWidth + kGap, "test accuracy (%)", "#2ca02c", curve.accuracy, std::min(lowest, 99.0),
          100, events);
  }
  if (!events.empty()) {
    out << "<text x='" << kLeft << "' y='" << height - 4
        << "'>red: a worker is killed; green: another one has joined in its place</text>\n";
  }
  out << "</svg>\n";
  out.flush();
  return out.good();
}

}  // namespace job

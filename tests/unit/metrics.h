// Reads the text of dsgd_metrics.
#pragma once

#include <map>
#include <sstream>
#include <string>

// By name, with labels.
inline std::map<std::string, double> parse_metrics(const std::string& text) {
  std::map<std::string, double> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line[0] != '#') values[line.substr(0, line.rfind(' '))] = std::stod(line.substr(line.rfind(' ')));
  }
  return values;
}

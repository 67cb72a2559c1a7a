// The functions that dsgd.h declares, for tables that must have all of them.
#pragma once

#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>

// By name, their arguments.
inline std::map<std::string, std::string> declared_functions() {
  std::ifstream file(DSGD_HEADER);
  std::stringstream text;
  text << file.rdbuf();
  const std::string header = text.str();
  const std::regex declaration(R"(DSGD_API[^;(]*?(dsgd_\w+)\(([^;]*)\);)");
  std::map<std::string, std::string> functions;
  for (auto match = std::sregex_iterator(header.begin(), header.end(), declaration);
       match != std::sregex_iterator(); ++match) {
    functions[(*match)[1]] = (*match)[2];
  }
  return functions;
}

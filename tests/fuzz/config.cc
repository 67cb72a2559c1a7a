// The configuration. An input is an environment, one NAME=VALUE in a line, then an empty line and a file. A
// configuration that is valid can be written and read again.
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/config.h"

using namespace dsgd;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

std::vector<std::pair<std::string, std::string>> variables(std::string_view lines) {
  std::vector<std::pair<std::string, std::string>> found;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    if (const size_t equals = line.find('='); equals != line.npos)
      found.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  return found;
}

void read(std::string_view input) {
  const size_t end = input.find("\n\n");
  const std::string_view environment = input.substr(0, end);
  const std::string_view file = end == input.npos ? "" : input.substr(end + 2);
  Config config;
  config.set_environment(variables(environment));
  const bool launched = config.apply_launcher().ok();
  const bool parsed = config.parse(file, "file").ok();
  (void)config.warnings();
  (void)config.validate(true);
  (void)config.validate_client();
  const bool valid = config.validate().ok();
  Config again;
  for (const ConfigKey& key : config_keys()) {
    (void)config.integer(key.name), (void)config.size(key.name), (void)config.duration(key.name);
    const std::string value = config.text(key.name);
    if (launched && parsed && valid && !value.empty()) require(again.set(key.name, value).ok());
  }
  (void)config.ports(), (void)config.devices(0), (void)config.devices(3);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);  // exact, so that an over-read is seen
  read(input);
  return 0;
}

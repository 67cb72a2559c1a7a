// `dsgd config`: the table of keys, as the library has it.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "capi/tools/tool.h"

namespace dsgd_tool {

std::vector<dsgd_config_key> all_keys() {
  std::vector<dsgd_config_key> keys(dsgd_config_key_count());
  for (size_t i = 0; i < keys.size(); ++i) {
    dsgd_error* error = nullptr;
    check(dsgd_config_key_init(&keys[i], sizeof keys[i]), nullptr);
    check(dsgd_config_key_at(i, &keys[i], &error), error);
  }
  return keys;
}

namespace {

// A cell of a Markdown table: a bar inside would end it.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  return escaped;
}

std::string code(const std::string& text) { return text.empty() ? "" : "`" + cell(text) + "`"; }

void print_markdown(const std::vector<dsgd_config_key>& keys) {
  std::printf(
      "| key | type | default | range | meaning | environment |\n| --- | --- | --- | --- | --- | --- |\n");
  for (const auto& key : keys)
    std::printf("| %s | %s | %s | %s | %s | %s |\n", code(key.name).c_str(), key.type,
                code(key.default_value).c_str(), cell(key.range).c_str(), cell(key.help).c_str(),
                code(key.environment).c_str());
}

void print_key(const dsgd_config_key& key) {
  std::printf("%s (%s", key.name, key.type);
  if (*key.range) std::printf(", %s", key.range);
  std::printf(")\n    %s\n    default: %s\n    environment: %s\n", key.help,
              *key.default_value ? key.default_value : "(empty)", key.environment);
}

void print_plain(const std::vector<dsgd_config_key>& keys, bool all) {
  const char* between = "";
  if (all) {
    std::printf(
        "A key is set by dsgd_config_set, by its environment variable, by a line \"key = value\" of a file, "
        "or by dsgd run --set KEY=VALUE.\n");
    between = "\n";
  }
  for (const auto& key : keys) {
    std::printf("%s", between);
    between = "\n";
    print_key(key);
  }
}

dsgd_config_key find_key(const std::string& name) {
  for (const auto& key : all_keys())
    if (name == key.name) return key;
  // Setting an unknown key throws a Failure that suggests the nearest key.
  set_key(OwnedConfig(dsgd_config_new()), name, "");
  throw Failure("unknown key '" + name + "'");
}

}  // namespace

Command add_config(CLI::App& app) {
  auto markdown = std::make_shared<bool>(false);
  auto names = std::make_shared<std::vector<std::string>>();
  app.add_option("KEY", *names, "Print these keys only");
  app.add_flag("--markdown", *markdown, "Print a Markdown table");
  return [markdown, names] {
    std::vector<dsgd_config_key> keys;
    for (const auto& name : *names) keys.push_back(find_key(name));
    if (names->empty()) keys = all_keys();
    if (*markdown) {
      print_markdown(keys);
    } else {
      print_plain(keys, names->empty());
    }
    return 0;
  };
}

}  // namespace dsgd_tool

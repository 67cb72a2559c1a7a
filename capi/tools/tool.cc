#include "capi/tools/tool.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <CLI/CLI.hpp>

#include "core/base/integer.h"
#include "core/base/log.h"

namespace dsgd_tool {

void check(int32_t status, dsgd_error* const& error) {
  if (status == DSGD_OK) return;
  const std::string message = std::string(dsgd_error_message(error)) + " (" + dsgd_status_name(status) + ")";
  dsgd_error_free(error);
  throw Failure(message, status);
}

Failure system_failure(const std::string& what) {
  const int number = errno;
  const char* remedy = number == EMFILE   ? "; raise the limit of open files (ulimit -n)"
                       : number == EAGAIN ? "; raise the limit of processes (ulimit -u)"  // of fork
                                          : "";
  return Failure(what + ": " + std::strerror(number) + remedy);
}

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
  throw Failure("cannot write the output" + (errno ? std::string(": ") + std::strerror(errno) : ""));
}

std::string Setting::variable() const {
  std::string name = "DSGD_" + key;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

std::string record_text(const char* program, const dsgd_log_record* record) {
  return std::string(program) + ": " + dsgd::kLogLevelNames[dsgd_log_record_level(record)] + ": " +
         dsgd_log_record_message(record) + "\n";
}

Setting parse_setting(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw UsageError("--set", "'" + text + "' is not KEY=VALUE; `dsgd config` lists the keys");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

void set_key(const OwnedConfig& config, const std::string& key, const std::string& value) {
  dsgd_error* error = nullptr;
  check(dsgd_config_set(config.get(), key.c_str(), value.c_str(), &error), error);
}

void add_job_options(CLI::App& app, JobOptions* options) {
  app.add_option("--job", options->job, "Name of the job (default: DSGD_JOB)");
  app.add_option("--token", options->token,
                 "Secret of the job; DSGD_TOKEN keeps it out of the process list (default: DSGD_TOKEN)");
  app.add_option("--set", options->settings, "Another configuration key, KEY=VALUE; may be repeated")
      ->take_all();
  app.add_option("--config", options->file, "Configuration file with lines \"key = value\"");
}

void configure(const OwnedConfig& config, const JobOptions& options, const Setting& own) {
  dsgd_error* error = nullptr;
  if (!options.file.empty()) check(dsgd_config_load(config.get(), options.file.c_str(), &error), error);
  for (const auto& [key, value] :
       std::vector<Setting>{{"head", options.head}, {"job", options.job}, {"token", options.token}, own}) {
    if (!value.empty()) set_key(config, key, value);
  }
  for (const std::string& text : options.settings) {
    const auto [key, value] = parse_setting(text);
    set_key(config, key, value);
  }
}

std::function<std::string(const std::string&)> whole_number(int least, int most) {
  return [least, most](const std::string& text) -> std::string {
    const auto number = dsgd::parse_integer(text);
    if (number && least <= *number && *number <= most) return "";
    return "'" + text + "' is not a whole number from " + std::to_string(least) + " to " +
           std::to_string(most);
  };
}

}  // namespace dsgd_tool

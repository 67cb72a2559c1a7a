#include "capi/src/config.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capi/src/call.h"
#include "capi/src/sized.h"

namespace dsgd::capi {

namespace {

// MPICH's environment does not name the job. The process at the other end of PMI_FD does: it is Hydra's
// proxy, the same for all processes of a host.
std::string launcher_process() {
  const char* fd = std::getenv("PMI_FD");
  ucred peer{};
  socklen_t size = sizeof peer;
  if (!fd || getsockopt(std::atoi(fd), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "";
  return std::to_string(peer.pid);
}

}  // namespace

Config environment_config() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  Config config;
  config.set_environment(std::move(variables), launcher_process());
  return config;
}

namespace {

constexpr size_t kLargestFile = 1 << 20;
constexpr size_t kConfigKeyFirstSize = 56;  // the smallest that is accepted

Status file_error(const Call& call, int number, const char* path) {
  const Code code = number == ENOENT || number == ENOTDIR ? Code::kNotFound : Code::kIo;
  return call.fail(code, std::string("configuration file '") + path + "': " + std::strerror(number));
}

Result<std::string> read_file(const Call& call, const char* path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "re"), std::fclose);
  if (!file) return file_error(call, errno, path);
  std::string text(kLargestFile + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get())) return file_error(call, errno, path);
  if (text.size() <= kLargestFile) return text;
  return call.fail(Code::kLimit, std::string("configuration file '") + path + "' is larger than 1 MiB");
}

}  // namespace
}  // namespace dsgd::capi

using dsgd::Code;
using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;

extern "C" {

dsgd_config* dsgd_config_new(void) {
  dsgd_config* config = nullptr;
  guard(__func__, nullptr, [&](const Call&) -> Status {
    auto made = std::make_unique<dsgd_config>();
    made->values = dsgd::capi::environment_config();
    config = made.release();
    return {};
  });
  return config;
}

void dsgd_config_free(dsgd_config* config) { dsgd::capi::free_handle(config); }

int32_t dsgd_config_set(dsgd_config* config, const char* key, const char* value, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(config, "config"));
    DSGD_RETURN_IF_ERROR(call.not_null(key, "key"));
    DSGD_RETURN_IF_ERROR(call.not_null(value, "value"));
    return config->values.set(key, value);
  });
}

int32_t dsgd_config_load(dsgd_config* config, const char* path, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(config, "config"));
    DSGD_RETURN_IF_ERROR(call.not_empty(path, "path"));
    auto text = dsgd::capi::read_file(call, path);
    if (!text.ok()) return text.status();
    return config->values.parse(text.value(), path);
  });
}

const char* dsgd_config_value(const dsgd_config* config, const char* key) {
  const char* text = nullptr;
  guard(__func__, nullptr, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(config, "config"));
    DSGD_RETURN_IF_ERROR(call.not_null(key, "key"));
    if (const std::string* value = config->values.get(key)) text = value->c_str();
    return {};
  });
  return text;
}

int32_t dsgd_config_key_init(dsgd_config_key* key, size_t struct_size) {
  return guard(__func__, nullptr, [&](const Call& call) -> Status {
    dsgd_config_key defaults{};
    defaults.name = defaults.type = defaults.default_value = defaults.range = defaults.help =
        defaults.environment = "";
    return init_sized(call, key, struct_size, defaults, dsgd::capi::kConfigKeyFirstSize, "key");
  });
}

size_t dsgd_config_key_count(void) { return dsgd::config_keys().size(); }

int32_t dsgd_config_key_at(size_t index, dsgd_config_key* key, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(
        check_sized(call, key, dsgd::capi::kConfigKeyFirstSize, "key", "dsgd_config_key_init"));
    const auto keys = dsgd::config_keys();
    if (index >= keys.size())
      return call.invalid("index " + std::to_string(index) + " is beyond the table of " +
                          std::to_string(keys.size()) + " keys; see dsgd_config_key_count");
    const dsgd::ConfigKey& row = keys[index];
    dsgd_config_key copy{};
    copy.name = row.name;
    copy.type = row.type;
    copy.default_value = row.default_value;
    copy.range = row.range;
    copy.help = row.help;
    copy.environment = row.environment;
    dsgd::capi::write_sized(key, copy);
    return {};
  });
}

int32_t dsgd_config_log_hook(dsgd_config* config, dsgd_log_function function, void* user,
                             dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(config, "config"));
    config->hook = {function, user};
    return {};
  });
}

}  // extern "C"

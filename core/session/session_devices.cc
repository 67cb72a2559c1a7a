// Devices of replicas, as a session opens and reads them.

#include <algorithm>
#include <charconv>

#include "core/config/table.h"
#include "core/session/session_impl.h"

namespace dsgd {

namespace {

constexpr size_t kReadPart = 4 << 20;  // bytes on the host at a time

// The index in "cuda:1"; 0 in "cpu".
Result<int32_t> device_index(const std::string& name, const Registered::Backends& backends) {
  if (name == "cpu") return 0;
  const size_t colon = name.find(':');
  const std::string backend = name.substr(0, colon);
  if (!backends.contains(backend)) {
    std::string known = "cpu";
    for (const auto& [other, open] : backends) known += " or " + other + ":N";
    return Status(Code::kUnsupported, "unknown device '" + name + "'; use " + known)
        .with_parameter("devices");
  }
  int32_t index = 0;
  const char* const end = name.data() + name.size();
  const auto read = colon == std::string::npos ? std::from_chars_result{end, std::errc::invalid_argument}
                                               : std::from_chars(name.data() + colon + 1, end, index);
  if (read.ec == std::errc::result_out_of_range) {
    return Status(Code::kInvalidArgument,
                  "device '" + name + "' does not exist: its index is too large; use a smaller one")
        .with_parameter("devices");
  }
  if (read.ec != std::errc() || read.ptr != end || name[colon + 1] == '-') {
    const bool several = name.find_first_of(",;") != std::string::npos;
    return Status(Code::kInvalidArgument, "device '" + name + "' has no index; write " + backend +
                                              ":0 for the first one" +
                                              (several ? ", and name one device for each replica" : ""))
        .with_parameter("devices");
  }
  return index;
}

}  // namespace

Status find_devices(Config& config, const Registered& registered, Log& log) {
  if (config.text("devices") != "auto") {
    for (const std::string& name : config::split_list(config.text("devices"))) {
      const auto index = device_index(name, registered.backends);
      if (index.ok()) continue;
      return Status(index.status().code(), "key 'devices': " + index.status().message() +
                                               "; auto, as the only entry, takes every GPU of this process")
          .with_parameter("devices");
    }
    return {};
  }
  std::string found;
  for (const auto& [name, load] : registered.backends) {
    auto backend = load();
    auto count = backend.ok() ? device::Device::count(*backend.value()) : Result<int32_t>(backend.status());
    if (!count.ok()) {
      const std::string text =
          "devices = 'auto': no " + name + " device is used: " + count.status().message();
      backend.ok() ? log.warning(text) : log.info(text);
      continue;
    }
    for (int32_t index = 0; index < count.value(); ++index)
      found += (found.empty() ? "" : ",") + name + ':' + std::to_string(index);
  }
  if (found.empty()) {
    found = "cpu";
    (void)config.set("devices_per_worker", "0");  // each worker has its own CPU replica
  }
  log.info("devices = 'auto': found " + found);
  return config.set("devices", found);
}

Result<std::shared_ptr<device::Device>> Session::Impl::device(const std::string& name) {
  auto index = device_index(name, backends);
  if (!index.ok()) return index.status();
  if (name == "cpu") return device::Device::host();
  const auto backend = backends.find(name.substr(0, name.find(':')));
  for (const auto& replica : model.replicas) {
    if (replica->device->name() == backend->first + ':' + std::to_string(index.value()))
      return replica->device;
  }
  auto table = backend->second();
  auto opened = table.ok() ? device::Device::open(*table.value(), index.value(), patience)
                           : Result<std::shared_ptr<device::Device>>(table.status());
  if (opened.ok()) {
    log->info(opened.value()->describe());
    return opened;
  }
  const Status& why = opened.status();
  const std::string about = why.message().find(name) == std::string::npos ? "device '" + name + "': " : "";
  return Status(why.code(), about + why.message()).with_parameter("devices");
}

Status Session::Impl::read(const Replica& replica, const std::byte* data, size_t nbytes,
                           const std::function<void(const void*, size_t)>& use) {
  if (replica.device->is_host()) {
    use(data, nbytes);
    return {};
  }
  auto opened = open_context(replica.device);
  if (!opened.ok()) return opened.status();
  DeviceContext& context = opened.value();
  auto staging = context.device->allocate_staging(std::min(nbytes, kReadPart));
  if (!staging.ok()) return staging.status();
  // The default stream already waits for the last step, so it is enough to follow it.
  Status status = context.follow_default_stream();
  for (size_t at = 0; at < nbytes && status.ok(); at += kReadPart) {
    const size_t part = std::min(kReadPart, nbytes - at);
    status = context.queue->copy(staging.value().get(), data + at, part);
    if (!status.ok()) break;
    status = block([&, this](auto done) { engine().when_reached(context, done); });
    if (status.ok()) use(staging.value().get(), part);
  }
  return status;
}

}  // namespace dsgd

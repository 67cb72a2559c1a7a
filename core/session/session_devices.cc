// Devices of replicas, as a session opens and reads them.

#include <algorithm>

#include "core/config/device_name.h"
#include "core/session/session_impl.h"

namespace dsgd {

namespace {

constexpr size_t kReadPart = 4 << 20;  // bytes on the host at a time

std::vector<std::string> names_of(const Registered::Backends& backends) {
  std::vector<std::string> names;
  for (const auto& [name, load] : backends) names.push_back(name);
  return names;
}

}  // namespace

Status find_devices(Config& config, const Registered& registered, Log& log) {
  if (config.text("devices") != "auto") return {};
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
  const auto parsed = config::parse_device_name(name, names_of(backends));
  if (!parsed.ok()) return parsed.status();
  const auto& [backend, index] = parsed.value();
  if (backend == "cpu") return device::Device::host();
  for (const auto& replica : model.replicas) {
    if (replica->device->name() == backend + ':' + std::to_string(index)) return replica->device;
  }
  auto table = backends.find(backend)->second();
  auto opened = table.ok() ? device::Device::open(*table.value(), index, patience)
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

// Devices of replicas, as a session opens and reads them.

#include <algorithm>

#include "core/config/device_name.h"
#include "core/session/session_impl.h"
#include "transport/bounded_calls.h"

namespace dsgd {

namespace {

constexpr size_t kReadPart = 4 << 20;  // bytes on the host at a time

std::vector<std::string> names_of(const Registered::Backends& backends) {
  std::vector<std::string> names;
  for (const auto& [name, load] : backends) names.push_back(name);
  return names;
}

using Opened = Result<std::shared_ptr<device::Device>>;

Opened open_within(const device::Backend& table, int32_t index, const device::TimeLimits& limits,
                   transport::Duration limit) {
  if (limit == transport::Duration::max()) return device::Device::open(table, index, limits);
  const auto opened = std::make_shared<Opened>(Status(Code::kInternal, ""));
  transport::BoundedCalls calls;
  if (calls.run(limit,
                [opened, &table, index, limits] { *opened = device::Device::open(table, index, limits); }))
    return *opened;
  return Status(Code::kTimeout, std::string(table.name) + ':' + std::to_string(index) +
                                    " could not be opened in time; other work of this process may keep it "
                                    "busy; add a replica on it, or "
                                    "give a longer timeout");
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

Result<std::shared_ptr<device::Device>> Session::Impl::device(const std::string& name,
                                                              transport::Duration limit) {
  const auto parsed = config::parse_device_name(name, names_of(backends));
  if (!parsed.ok()) return parsed.status();
  const auto& [backend, index] = parsed.value();
  if (backend == "cpu") return device::Device::host();
  const std::string full_name = backend + ':' + std::to_string(index);
  const auto find = [this, &full_name] {
    const auto found = std::find_if(devices.begin(), devices.end(),
                                    [&](const auto& device) { return device->name() == full_name; });
    return found == devices.end() ? nullptr : *found;
  };
  {
    std::lock_guard lock(devices_mutex);
    if (auto found = find()) return found;
  }
  auto table = backends.find(backend)->second();
  auto opened = table.ok() ? open_within(*table.value(), index, device_limits, limit) : table.status();
  if (opened.ok()) {
    std::lock_guard lock(devices_mutex);
    if (auto found = find()) return found;  // another thread has opened it
    log->info(opened.value()->describe());
    devices.push_back(opened.value());
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
  DeviceContext context;
  DSGD_RETURN_IF_ERROR(open_context(replica.device).into(&context));
  Memory staging;
  DSGD_RETURN_IF_ERROR(context.device->allocate_staging(std::min(nbytes, kReadPart)).into(&staging));
  // The default stream already waits for the last step, so it is enough to follow it.
  Status status = context.follow_default_stream();
  for (size_t at = 0; at < nbytes && status.ok(); at += kReadPart) {
    const size_t part = std::min(kReadPart, nbytes - at);
    status = context.queue->copy(staging.get(), data + at, part);
    if (!status.ok()) break;
    status = block([&, this](auto done) { engine().when_queue_done(context, done); });
    if (status.ok()) use(staging.get(), part);
  }
  return status;
}

Result<CollectiveBuffers> Session::Impl::locate_buffers(const char* operation, const Buffer& send,
                                                        const Buffer* receive, const CallOptions& options) {
  const auto bad = [&](const Status& why, const std::string& text) {
    return Status(why.code(), std::string(operation) + ": " + text + why.message()).with_operation(operation);
  };
  const auto wrong = [&](const std::string& text) { return bad(Status(Code::kInvalidArgument, ""), text); };
  const auto find = [&](const Buffer* buffer) -> Result<std::string> {
    if (!buffer || buffer->nbytes == 0) return std::string();
    auto found = locate(buffer->data, buffer->nbytes);
    return found.ok() ? found : bad(found.status(), buffer->name + std::string(" is "));
  };
  const bool in_place = receive && receive->data == send.data && receive->nbytes == send.nbytes;
  const auto from = find(&send), to = in_place ? from : find(receive);
  if (!from.ok()) return from.status();
  if (!to.ok()) return to.status();
  const std::string &sender = from.value(), &receiver = to.value();
  CollectiveBuffers buffers;
  buffers.send = !sender.empty();
  buffers.receive = !receiver.empty();
  if (!buffers.send && !buffers.receive) {
    // An empty buffer may be the one on the GPU.
    if (!options.stream || send.nbytes == 0 || (receive && receive->nbytes == 0)) return buffers;
    std::string text =
        "a stream is given, but the buffers are host memory, or memory of a GPU that was freed; for host "
        "memory leave `stream` NULL";
    for (const auto& [name, load] : backends) {
      if (const auto table = load(); !table.ok()) text += " (" + table.status().message() + ")";
    }
    return wrong(text);
  }
  if (buffers.send && buffers.receive && sender != receiver) {
    return wrong(std::string(send.name) + " is memory of " + sender + " and " + receive->name +
                 " is memory of " + receiver + "; give both on one GPU");
  }
  const std::string& name = buffers.send ? sender : receiver;
  auto opened = device(name, timeout_of(options));
  if (!opened.ok()) {
    return bad(opened.status(), (buffers.send ? send.name : receive->name) + (" is memory of " + name) +
                                    ", which cannot be used: ");
  }
  buffers.device = std::move(opened).value();
  auto event = events.take(*buffers.device);
  if (!event.ok()) return bad(event.status(), "");
  buffers.after = std::move(event).value();
  if (Status status = buffers.device->record_stream(*buffers.after, options.stream); !status.ok())
    return bad(status, "the stream cannot be used: ");
  return buffers;
}

}  // namespace dsgd

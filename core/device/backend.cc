// Devices of a backend: its table, in the shape that the rest of core knows.
#include "core/device/backend.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "core/device/device.h"
#include "transport/bounded_calls.h"

namespace dsgd::device {
namespace {

std::string text_of(Message& message) {
  message.text[sizeof message.text - 1] = 0;
  return message.text;
}

// One call into the table: a code and a message become a Status.
template <typename Function, typename... Arguments>
Status call(const Function& function, Arguments&&... arguments) {
  Message message{};
  const int32_t code = function(arguments..., &message);
  return code == 0 ? Status() : Status(static_cast<Code>(code), text_of(message));
}

// Limit of a release after another device has hung.
constexpr std::chrono::nanoseconds kAfterHang = std::chrono::milliseconds(100);

class BackendDevice final : public Device, public std::enable_shared_from_this<BackendDevice> {
 public:
  BackendDevice(const Backend& backend, DeviceHandle* handle, int32_t index, TimeLimits limits)
      : backend(backend),
        handle(handle),
        index_(index),
        name_(std::string(backend.name) + ':' + std::to_string(index)),
        description_(name_ + ": " + backend.describe(handle)),
        limits_(std::move(limits)) {}
  ~BackendDevice() override {
    release([close = backend.close, handle = handle] { close(handle); });
  }

  const std::string& name() const override { return name_; }
  const std::string& describe() const override { return description_; }
  int32_t index() const override { return index_; }
  bool is_host() const override { return false; }
  DeviceId identity() const override { return backend.identity(handle); }
  Result<CommunicatorLibrary> load_communicators(const std::string& path) override;
  Result<CommunicatorId> new_communicator_id() override;
  Result<std::shared_ptr<void>> allocate(size_t nbytes) override {
    return memory(nbytes, backend.allocate, backend.release);
  }
  Result<std::shared_ptr<void>> allocate_staging(size_t nbytes) override {
    return memory(nbytes, backend.allocate_staging, backend.release_staging);
  }
  Result<std::shared_ptr<void>> allocate_staging_parts(size_t nbytes, std::vector<ByteRange> parts) override {
    const auto allocate = [parts = std::move(parts), function = backend.allocate_staging_parts](
                              DeviceHandle* device, uint64_t size, void** data, Message* message) {
      return function(device, size, parts.data(), static_cast<uint32_t>(parts.size()), data, message);
    };
    return memory(nbytes, allocate, backend.release_staging_parts);
  }
  Status check(const void* data, size_t nbytes) const override {
    return call(backend.check_pointer, handle, data, nbytes);
  }
  void release_in_order(std::function<void()> release) override {
    if (calls_.late()) {
      calls_.run({}, std::move(release));
    } else {
      release();
    }
  }
  Result<std::unique_ptr<WorkQueue>> new_queue() override;
  Result<std::unique_ptr<DeviceEvent>> new_event() override;
  Status record_stream(DeviceEvent& event, void* stream) override;
  Status stream_wait(void* stream, DeviceEvent& event) override;

  // Runs `call`, which frees something of the device, after all earlier ones. Waits for a limited time, and
  // not at all if an earlier one is late. The last one closes the device itself.
  template <typename Call>
  void release(const Call& call) {
    auto limit = *limits_.hangs ? std::min(kAfterHang, limits_.release) : limits_.release;
    if (calls_.late()) limit = {};
    if (calls_.run(limit, call)) return;
    *limits_.hangs = true;
    if (warned_.exchange(true) || !limits_.warn) return;
    limits_.warn(
        name_ +
        " has not finished its enqueued work (dsgd's and the host's); dsgd does not wait longer, and "
        "frees the memory when the work ends");
  }

  using Allocate = std::function<int32_t(DeviceHandle*, uint64_t, void**, Message*)>;
  using Release = std::function<void(DeviceHandle*, void*)>;
  Result<std::shared_ptr<void>> memory(size_t nbytes, const Allocate& allocate, const Release& release);

  const Backend& backend;
  DeviceHandle* const handle;

 private:
  const int32_t index_;
  const std::string name_, description_;
  const TimeLimits limits_;
  std::atomic<bool> warned_ = false;
  transport::BoundedCalls calls_;
};

Result<std::shared_ptr<void>> BackendDevice::memory(size_t nbytes, const Allocate& allocate,
                                                    const Release& release) {
  struct Made {
    std::mutex mutex;
    bool ended = false, given_up = false;
    void* data = nullptr;
    Status status;
  };
  const auto made = std::make_shared<Made>();
  const auto allocate_here = [made, allocate, release, nbytes, handle = handle] {
    void* data = nullptr;
    Status status = call(allocate, handle, nbytes, &data);
    std::unique_lock lock(made->mutex);
    if (made->given_up) {
      lock.unlock();
      if (status.ok()) release(handle, data);
      return;
    }
    made->ended = true;
    made->data = data;
    made->status = std::move(status);
  };
  (void)calls_.run(limits_.allocation, allocate_here);
  std::lock_guard lock(made->mutex);
  if (!made->ended) {
    made->given_up = true;
    return Status(
        Code::kTimeout,
        name_ + " has not allocated " + std::to_string(nbytes) + " bytes within " +
            std::to_string(std::chrono::duration_cast<std::chrono::seconds>(limits_.allocation).count()) +
            " s; a stream of the host may be blocked");
  }
  if (!made->status.ok()) return made->status;
  return std::shared_ptr<void>(made->data, [self = shared_from_this(), release](void* freed) {
    self->release([release, handle = self->handle, freed] { release(handle, freed); });
  });
}

class BackendEvent final : public DeviceEvent {
 public:
  BackendEvent(std::shared_ptr<BackendDevice> device, Event* event)
      : event(event), device_(std::move(device)) {}
  ~BackendEvent() override {
    device_->release([close = device_->backend.event_close, event = event] { close(event); });
  }
  Result<bool> done() override {
    Message message{};
    const EventState state = device_->backend.event_query(event, &message);
    if (state != EventState::kFailed) return state == EventState::kDone;
    return Status(Code::kInternal, text_of(message));
  }

  Event* const event;

 private:
  const std::shared_ptr<BackendDevice> device_;
};

Event* event_of(DeviceEvent& event) { return static_cast<BackendEvent&>(event).event; }

class BackendQueue final : public WorkQueue {
 public:
  BackendQueue(std::shared_ptr<BackendDevice> device, Queue* queue)
      : device_(std::move(device)), queue_(queue) {}
  ~BackendQueue() override {
    device_->release([close = backend().queue_close, queue = queue_] { close(queue); });
  }

  Status copy(void* to, const void* from, size_t nbytes) override {
    if (nbytes == 0) return {};
    return call(backend().copy, queue_, to, from, nbytes);
  }
  Status sum(DType dtype, std::span<const SumPiece> pieces, std::span<const Term> terms, void* bucket,
             NonFinite* found) override {
    return call(backend().sum, queue_, dtype, pieces.data(), static_cast<uint32_t>(pieces.size()),
                terms.data(), bucket, found);
  }
  Status update(DType dtype, std::span<const UpdatePiece> pieces, std::span<void* const> targets,
                const void* bucket) override {
    return call(backend().update, queue_, dtype, pieces.data(), static_cast<uint32_t>(pieces.size()),
                targets.data(), bucket);
  }
  Status squares(DType dtype, std::span<const SquarePiece> pieces, const void* bucket,
                 double* sums) override {
    return call(backend().squares, queue_, dtype, pieces.data(), static_cast<uint32_t>(pieces.size()), bucket,
                sums);
  }
  Status record(DeviceEvent& event) override { return call(backend().event_record, event_of(event), queue_); }
  Status notify(std::function<void()> done) override {
    auto context = std::make_unique<std::function<void()>>(std::move(done));
    const auto call_done = [](void* context) {
      const std::unique_ptr<std::function<void()>> done(static_cast<std::function<void()>*>(context));
      (*done)();
    };
    Status status = call(backend().queue_notify, queue_, call_done, context.get());
    if (status.ok()) (void)context.release();  // call_done deletes it
    return status;
  }
  Status wait(DeviceEvent& event) override { return call(backend().queue_wait, queue_, event_of(event)); }

 private:
  const Backend& backend() const { return device_->backend; }

  const std::shared_ptr<BackendDevice> device_;
  Queue* const queue_;
};

// Functions as callbacks of the table's.
struct Callbacks {
  Communicator::Ended ended;
  std::function<void()> enqueued;
};
void call_ended(void* context, int32_t code, const char* message) {
  const std::unique_ptr<Callbacks> callbacks(static_cast<Callbacks*>(context));
  callbacks->ended(code == 0 ? Status() : Status(static_cast<Code>(code), message));
}
void call_enqueued(void* context) { static_cast<Callbacks*>(context)->enqueued(); }

class BackendCommunicator final : public Communicator {
 public:
  BackendCommunicator(std::vector<std::shared_ptr<Device>> devices, const Backend& backend,
                      Comm* communicator)
      : devices_(std::move(devices)), backend_(backend), communicator_(communicator) {}
  ~BackendCommunicator() override {
    // All of its devices stay until it has gone.
    first_device().release(
        [devices = devices_, close = backend_.communicator_close, comm = communicator_] { close(comm); });
  }
  void enqueue(const Work& work, std::chrono::nanoseconds timeout, Ended ended,
               std::function<void()> enqueued) override {
    std::vector<Event*> wait_for, done_events;
    for (DeviceEvent* event : work.wait_for) wait_for.push_back(event_of(*event));
    for (DeviceEvent* event : work.done_events) done_events.push_back(event_of(*event));
    const bool tells = static_cast<bool>(enqueued);
    const CollectiveWork given{work.collective,
                               work.dtype,
                               work.count,
                               work.buffers.data(),
                               wait_for.empty() ? nullptr : wait_for.data(),
                               work.copies_before.data(),
                               work.copies_after.data(),
                               static_cast<uint32_t>(work.copies_before.size()),
                               static_cast<uint32_t>(work.copies_after.size()),
                               done_events.data(),
                               timeout.count(),
                               tells ? call_enqueued : nullptr};
    backend_.communicator_enqueue(communicator_, &given, call_ended,
                                  new Callbacks{std::move(ended), std::move(enqueued)});
  }
  // The devices stay as long as the memory does.
  Result<std::vector<std::shared_ptr<void>>> allocate(size_t nbytes) override {
    const auto there = std::make_shared<std::vector<void*>>(devices_.size());
    auto memory = first_device().memory(
        nbytes,
        [there, comm = communicator_, function = backend_.communicator_allocate](
            DeviceHandle*, uint64_t size, void** made, Message* message) {
          CommMemory* memory = nullptr;
          const int32_t code = function(comm, size, there->data(), &memory, message);
          *made = memory;
          return code;
        },
        [devices = devices_, function = backend_.communicator_release](DeviceHandle*, void* made) {
          function(static_cast<CommMemory*>(made));
        });
    if (!memory.ok()) return memory.status();
    std::vector<std::shared_ptr<void>> by_device;
    for (void* data : *there) by_device.emplace_back(memory.value(), data);
    return by_device;
  }
  void fail(const Status& cause) override {
    backend_.communicator_fail(communicator_, static_cast<int32_t>(cause.code()), cause.message().c_str());
  }

 private:
  BackendDevice& first_device() const { return static_cast<BackendDevice&>(*devices_.front()); }

  const std::vector<std::shared_ptr<Device>> devices_;
  const Backend& backend_;
  Comm* const communicator_;
};

Result<std::unique_ptr<WorkQueue>> BackendDevice::new_queue() {
  Queue* queue = nullptr;
  DSGD_RETURN_IF_ERROR(call(backend.queue_open, handle, &queue));
  return std::unique_ptr<WorkQueue>(std::make_unique<BackendQueue>(shared_from_this(), queue));
}

Result<std::unique_ptr<DeviceEvent>> BackendDevice::new_event() {
  Event* event = nullptr;
  DSGD_RETURN_IF_ERROR(call(backend.event_open, handle, &event));
  return std::unique_ptr<DeviceEvent>(std::make_unique<BackendEvent>(shared_from_this(), event));
}

Result<Device::CommunicatorLibrary> BackendDevice::load_communicators(const std::string& path) {
  CommunicatorLibrary library{};
  Message message{};
  const int32_t code = backend.communicator_load(path.c_str(), &library.version, &message);
  library.description = text_of(message);
  if (code != 0) return Status(static_cast<Code>(code), library.description);
  return library;
}

Result<CommunicatorId> BackendDevice::new_communicator_id() {
  CommunicatorId id{};
  DSGD_RETURN_IF_ERROR(call(backend.communicator_id, &id));
  return id;
}

Status BackendDevice::record_stream(DeviceEvent& event, void* stream) {
  return call(backend.event_record_stream, event_of(event), stream);
}

Status BackendDevice::stream_wait(void* stream, DeviceEvent& event) {
  return call(backend.stream_wait, stream, event_of(event));
}

// Before anything of the table's is called.
Status check_version(const Backend& backend) {
  if (backend.version == kBackendVersion) return {};
  return Status(Code::kUnsupported, std::string("the plug-in for ") + backend.name + " devices has version " +
                                        std::to_string(backend.version) + ", this library knows version " +
                                        std::to_string(kBackendVersion) +
                                        "; install both from one release of dsgd");
}

}  // namespace

Result<int32_t> Device::count(const Backend& backend) {
  if (Status known = check_version(backend); !known.ok()) return known;
  int32_t count = 0;
  DSGD_RETURN_IF_ERROR(call(backend.device_count, &count));
  return count;
}

Result<std::shared_ptr<Device>> Device::open(const Backend& backend, int32_t index, TimeLimits limits) {
  auto counted = Device::count(backend);
  if (!counted.ok()) return counted.status();
  const int32_t count = counted.value();
  const std::string name = std::string(backend.name) + ':' + std::to_string(index);
  if (index < 0 || index >= count) {
    return Status(Code::kInvalidArgument,
                  "there is no device '" + name + "': this process can use " +
                      (count == 0 ? "none"
                                  : std::string(backend.name) + ":0" +
                                        (count > 1 ? " to " + std::string(backend.name) + ':' +
                                                         std::to_string(count - 1)
                                                   : "")));
  }
  DeviceHandle* handle = nullptr;
  DSGD_RETURN_IF_ERROR(call(backend.open, index, &handle));
  return std::shared_ptr<Device>(std::make_shared<BackendDevice>(backend, handle, index, std::move(limits)));
}

Result<std::string> Device::locate(const Backend& backend, const void* data, size_t nbytes) {
  if (!check_version(backend).ok()) return std::string();  // one that cannot be asked
  int32_t index = -1;
  DSGD_RETURN_IF_ERROR(call(backend.locate, data, nbytes, &index));
  return index < 0 ? std::string() : std::string(backend.name) + ':' + std::to_string(index);
}

Result<std::unique_ptr<Communicator>> Device::join(const std::vector<std::shared_ptr<Device>>& devices,
                                                   const CommunicatorId& id, int32_t first, int32_t size,
                                                   std::chrono::nanoseconds timeout,
                                                   Communicator::Ended joined) {
  std::vector<DeviceHandle*> handles;
  for (const auto& device : devices) handles.push_back(static_cast<BackendDevice&>(*device).handle);
  const Backend& backend = static_cast<BackendDevice&>(*devices.front()).backend;
  Comm* communicator = nullptr;
  auto* const context = new Callbacks{std::move(joined), {}};
  Status status = call(backend.communicator_open, handles.data(), static_cast<uint32_t>(handles.size()), &id,
                       first, size, timeout.count(), call_ended, context, &communicator);
  if (!status.ok()) {
    delete context;
    return status;
  }
  return std::unique_ptr<Communicator>(std::make_unique<BackendCommunicator>(devices, backend, communicator));
}

}  // namespace dsgd::device

// Devices of a backend: its table, in the shape that the rest of core knows.
#include "core/device/backend.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <utility>

#include "core/device/device.h"
#include "transport/bounded_calls.h"

namespace dsgd::device {
namespace {

// One call into the table: a code and a message become a Status.
template <typename Call>
Status call(Call&& function) {
  Message message{};
  const int32_t code = function(&message);
  if (code == 0) return {};
  message.text[sizeof message.text - 1] = 0;
  return Status(static_cast<Code>(code), message.text);
}

// Limit of a release after another device has hung.
constexpr std::chrono::nanoseconds kAfterHang = std::chrono::milliseconds(100);

class Opened final : public Device, public std::enable_shared_from_this<Opened> {
 public:
  Opened(const Backend& backend, Handle* handle, int32_t index, Patience patience)
      : backend(backend),
        handle(handle),
        index_(index),
        name_(std::string(backend.name) + ':' + std::to_string(index)),
        description_(name_ + ": " + backend.describe(handle)),
        patience_(std::move(patience)) {}
  ~Opened() override {
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
  Status check(const void* data, size_t nbytes) const override {
    return call([&](Message* message) { return backend.check_pointer(handle, data, nbytes, message); });
  }
  void release_after_work(std::function<void()> release) override {
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

  // The device is let go of last, behind all that is released before.
  template <typename Call>
  void release(const Call& call) {
    try {
      if (calls_.run(*patience_.hangs ? std::min(kAfterHang, patience_.release) : patience_.release, call))
        return;
      *patience_.hangs = true;
      if (warned_.exchange(true) || !patience_.warn) return;
    } catch (const std::bad_alloc&) {
      return call();
    }
    patience_.warn(
        name_ +
        " has not finished its enqueued work (dsgd's and the host's); dsgd does not wait longer, and "
        "frees the memory when the work ends");
  }

  const Backend& backend;
  Handle* const handle;

 private:
  using Allocate = int32_t (*)(Handle*, uint64_t, void**, Message*);
  using Release = void (*)(Handle*, void*);
  Result<std::shared_ptr<void>> memory(size_t nbytes, Allocate allocate, Release release);

  const int32_t index_;
  const std::string name_, description_;
  const Patience patience_;
  std::atomic<bool> warned_ = false;
  transport::BoundedCalls calls_;
};

Result<std::shared_ptr<void>> Opened::memory(size_t nbytes, Allocate allocate, Release release) {
  struct Made {
    std::mutex mutex;
    bool ended = false, given_up = false;
    void* data = nullptr;
    Status status;
  };
  const auto made = std::make_shared<Made>();
  const auto allocate_here = [made, allocate, release, nbytes, handle = handle] {
    void* data = nullptr;
    Status status = call([&](Message* message) { return allocate(handle, nbytes, &data, message); });
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
  if (!calls_.late()) (void)calls_.run(patience_.allocation, allocate_here);  // else it would only wait, too
  std::lock_guard lock(made->mutex);
  if (!made->ended) {
    made->given_up = true;
    return Status(
        Code::kTimeout,
        name_ + " has not allocated " + std::to_string(nbytes) + " bytes within " +
            std::to_string(std::chrono::duration_cast<std::chrono::seconds>(patience_.allocation).count()) +
            " s; a stream of the host may be blocked");
  }
  if (!made->status.ok()) return made->status;
  return std::shared_ptr<void>(made->data, [self = shared_from_this(), release](void* freed) {
    self->release([release, handle = self->handle, freed] { release(handle, freed); });
  });
}

class OpenedEvent final : public DeviceEvent {
 public:
  OpenedEvent(std::shared_ptr<Opened> device, Event* event) : event(event), device_(std::move(device)) {}
  ~OpenedEvent() override {
    device_->release([close = device_->backend.event_close, event = event] { close(event); });
  }
  Result<bool> done() override {
    Message message{};
    const EventState state = device_->backend.event_query(event, &message);
    if (state != EventState::kFailed) return state == EventState::kDone;
    message.text[sizeof message.text - 1] = 0;
    return Status(Code::kInternal, message.text);
  }

  Event* const event;

 private:
  const std::shared_ptr<Opened> device_;
};

Event* event_of(DeviceEvent& event) { return static_cast<OpenedEvent&>(event).event; }

class OpenedQueue final : public WorkQueue {
 public:
  OpenedQueue(std::shared_ptr<Opened> device, Queue* queue) : device_(std::move(device)), queue_(queue) {}
  ~OpenedQueue() override {
    device_->release([close = backend().queue_close, queue = queue_] { close(queue); });
  }

  Status copy(void* to, const void* from, size_t nbytes) override {
    if (nbytes == 0) return {};
    return call([&](Message* message) { return backend().copy(queue_, to, from, nbytes, message); });
  }
  Status sum(DType dtype, std::span<const SumPiece> pieces, std::span<const Term> terms,
             void* bucket) override {
    return call([&](Message* message) {
      return backend().sum(queue_, dtype, pieces.data(), static_cast<uint32_t>(pieces.size()), terms.data(),
                           bucket, message);
    });
  }
  Status update(DType dtype, std::span<const UpdatePiece> pieces, std::span<void* const> targets,
                const void* bucket) override {
    return call([&](Message* message) {
      return backend().update(queue_, dtype, pieces.data(), static_cast<uint32_t>(pieces.size()),
                              targets.data(), bucket, message);
    });
  }
  Status squares(DType dtype, std::span<const SquarePiece> pieces, const void* bucket,
                 double* sums) override {
    return call([&](Message* message) {
      return backend().squares(queue_, dtype, pieces.data(), static_cast<uint32_t>(pieces.size()), bucket,
                               sums, message);
    });
  }
  Status record(DeviceEvent& event) override {
    return call([&](Message* message) { return backend().event_record(event_of(event), queue_, message); });
  }
  Status notify(std::function<void()> done) override {
    auto context = std::make_unique<std::function<void()>>(std::move(done));
    Status status = call([&](Message* message) {
      return backend().queue_notify(
          queue_,
          [](void* context) {
            const std::unique_ptr<std::function<void()>> done(static_cast<std::function<void()>*>(context));
            (*done)();
          },
          context.get(), message);
    });
    if (status.ok()) (void)context.release();  // the call's
    return status;
  }
  Status wait(DeviceEvent& event) override {
    return call([&](Message* message) { return backend().queue_wait(queue_, event_of(event), message); });
  }

 private:
  const Backend& backend() const { return device_->backend; }

  const std::shared_ptr<Opened> device_;
  Queue* const queue_;
};

// A std::function as a callback of the table's.
void* held(Communicator::Ended ended) { return new Communicator::Ended(std::move(ended)); }
void call_held(void* context, int32_t code, const char* message) {
  const std::unique_ptr<Communicator::Ended> ended(static_cast<Communicator::Ended*>(context));
  (*ended)(code == 0 ? Status() : Status(static_cast<Code>(code), message));
}

class OpenedCommunicator final : public Communicator {
 public:
  OpenedCommunicator(std::vector<std::shared_ptr<Device>> devices, const Backend& backend, Comm* communicator)
      : devices_(std::move(devices)), backend_(backend), communicator_(communicator) {}
  ~OpenedCommunicator() override {
    // All of its devices stay until it has gone.
    static_cast<Opened&>(*devices_.front())
        .release(
            [devices = devices_, close = backend_.communicator_close, comm = communicator_] { close(comm); });
  }
  void enqueue(const Work& work, std::chrono::nanoseconds patience, Ended ended) override {
    std::vector<Event*> after, reached;
    for (DeviceEvent* event : work.after) after.push_back(event_of(*event));
    for (DeviceEvent* event : work.reached) reached.push_back(event_of(*event));
    const CollectiveWork enqueued{work.collective,
                                  work.dtype,
                                  work.count,
                                  work.buffers.data(),
                                  after.empty() ? nullptr : after.data(),
                                  work.before.data(),
                                  work.behind.data(),
                                  static_cast<uint32_t>(work.before.size()),
                                  static_cast<uint32_t>(work.behind.size()),
                                  reached.data(),
                                  patience.count()};
    backend_.communicator_enqueue(communicator_, &enqueued, call_held, held(std::move(ended)));
  }
  void fail(const Status& cause) override {
    backend_.communicator_fail(communicator_, static_cast<int32_t>(cause.code()), cause.message().c_str());
  }

 private:
  const std::vector<std::shared_ptr<Device>> devices_;
  const Backend& backend_;
  Comm* const communicator_;
};

Result<std::unique_ptr<WorkQueue>> Opened::new_queue() {
  Queue* queue = nullptr;
  Status status = call([&](Message* message) { return backend.queue_open(handle, &queue, message); });
  if (!status.ok()) return status;
  return std::unique_ptr<WorkQueue>(std::make_unique<OpenedQueue>(shared_from_this(), queue));
}

Result<std::unique_ptr<DeviceEvent>> Opened::new_event() {
  Event* event = nullptr;
  Status status = call([&](Message* message) { return backend.event_open(handle, &event, message); });
  if (!status.ok()) return status;
  return std::unique_ptr<DeviceEvent>(std::make_unique<OpenedEvent>(shared_from_this(), event));
}

Result<Device::CommunicatorLibrary> Opened::load_communicators(const std::string& path) {
  CommunicatorLibrary library{};
  Message message{};
  const int32_t code = backend.communicator_load(path.c_str(), &library.version, &message);
  message.text[sizeof message.text - 1] = 0;
  library.description = message.text;
  if (code != 0) return Status(static_cast<Code>(code), library.description);
  return library;
}

Result<CommunicatorId> Opened::new_communicator_id() {
  CommunicatorId id{};
  Status status = call([&](Message* message) { return backend.communicator_id(&id, message); });
  if (!status.ok()) return status;
  return id;
}

Status Opened::record_stream(DeviceEvent& event, void* stream) {
  return call(
      [&](Message* message) { return backend.event_record_stream(event_of(event), stream, message); });
}

Status Opened::stream_wait(void* stream, DeviceEvent& event) {
  return call([&](Message* message) { return backend.stream_wait(stream, event_of(event), message); });
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
  Status status = call([&](Message* message) { return backend.device_count(&count, message); });
  if (!status.ok()) return status;
  return count;
}

Result<std::shared_ptr<Device>> Device::open(const Backend& backend, int32_t index, Patience patience) {
  auto counted = Device::count(backend);
  if (!counted.ok()) return counted.status();
  const int32_t count = counted.value();
  const std::string name = std::string(backend.name) + ':' + std::to_string(index);
  if (index < 0 || index >= count) {
    return Status(Code::kInvalidArgument,
                  "there is no device '" + name + "': this machine has " +
                      (count == 0 ? "none"
                                  : std::string(backend.name) + ":0" +
                                        (count > 1 ? " to " + std::string(backend.name) + ':' +
                                                         std::to_string(count - 1)
                                                   : "")));
  }
  Handle* handle = nullptr;
  Status status = call([&](Message* message) { return backend.open(index, &handle, message); });
  if (!status.ok()) return status;
  return std::shared_ptr<Device>(std::make_shared<Opened>(backend, handle, index, std::move(patience)));
}

Status Device::check_host_memory(const Backend& backend, const void* data, size_t nbytes) {
  if (!check_version(backend).ok()) return {};  // one that cannot be asked
  return call([&](Message* message) { return backend.check_host_pointer(data, nbytes, message); });
}

Result<std::unique_ptr<Communicator>> Device::join(const std::vector<std::shared_ptr<Device>>& devices,
                                                   const CommunicatorId& id, int32_t first, int32_t size,
                                                   std::chrono::nanoseconds patience,
                                                   Communicator::Ended joined) {
  std::vector<Handle*> handles;
  for (const auto& device : devices) handles.push_back(static_cast<Opened&>(*device).handle);
  const Backend& backend = static_cast<Opened&>(*devices.front()).backend;
  Comm* communicator = nullptr;
  void* context = held(std::move(joined));
  Status status = call([&](Message* message) {
    return backend.communicator_open(handles.data(), static_cast<uint32_t>(handles.size()), &id, first, size,
                                     patience.count(), call_held, context, &communicator, message);
  });
  if (!status.ok()) {
    delete static_cast<Communicator::Ended*>(context);
    return status;
  }
  return std::unique_ptr<Communicator>(std::make_unique<OpenedCommunicator>(devices, backend, communicator));
}

}  // namespace dsgd::device

// Collectives and objects: arguments are checked here, before any message goes to another worker. The C
// boundary has refused NULL, empty names and parts of elements.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/objects/objects.h"
#include "core/session/arguments.h"
#include "core/session/session_impl.h"
#include "core/step/device_context.h"

namespace dsgd {
namespace {

Status invalid(const char* operation, const std::string& text) {
  return Status(Code::kInvalidArgument, std::string(operation) + ": " + text).with_operation(operation);
}

Status check_aligned(const char* operation, const char* which, const void* data, DType dtype) {
  const size_t element = dtype_size(dtype);
  if (reinterpret_cast<uintptr_t>(data) % element == 0) return {};
  return invalid(operation, std::string(which) + " is not aligned to the " + std::to_string(element) +
                                " bytes of a " + dtype_name(dtype));
}

Status check_apart(const char* operation, const void* send, const void* receive, size_t nbytes) {
  const auto from = reinterpret_cast<uintptr_t>(send), to = reinterpret_cast<uintptr_t>(receive);
  if (from == to || from + nbytes <= to || to + nbytes <= from) return {};
  return invalid(operation, "`send` and `receive` overlap; pass the same pointer twice, or buffers apart");
}

Status check_reduction(const char* function, DType dtype, Reduction reduction) {
  if (reduction != Reduction::kMean || is_floating(dtype)) return {};
  return Status(Code::kInvalidArgument, std::string(function) +
                                            ": DSGD_MEAN needs a floating-point dtype, not " +
                                            dtype_name(dtype) + "; use DSGD_SUM and divide");
}

// Elements of each rank: given, or equal parts of `total`. Reads no count after one that exceeds what is
// left, so the bindings end their lists with such a count.
Result<std::vector<size_t>> part_counts(const char* operation, const size_t* element_counts, size_t total,
                                        int32_t size) {
  std::vector<size_t> parts(size);
  if (element_counts) {
    size_t left = total;
    for (int32_t rank = 0; rank < size; ++rank) {
      parts[rank] = element_counts[rank];
      if (element_counts[rank] > left) {
        return invalid(operation, "`element_counts` add up to more than the " + std::to_string(total) +
                                      " elements of the whole buffer (at rank " + std::to_string(rank) + ")");
      }
      left -= element_counts[rank];
    }
    if (left == 0) return parts;
    return invalid(operation, "`element_counts` add up to " + std::to_string(total - left) +
                                  " elements, the whole buffer has " + std::to_string(total));
  }
  if (total % static_cast<size_t>(size) != 0) {
    return invalid(operation, std::to_string(total) + " elements cannot be split evenly among " +
                                  std::to_string(size) + " workers; give `element_counts`");
  }
  std::fill(parts.begin(), parts.end(), total / static_cast<size_t>(size));
  return parts;
}

Status check_part(const char* operation, const char* which, size_t given, size_t needed) {
  if (given == needed) return {};
  return invalid(operation, std::string(which) + " has " + std::to_string(given) +
                                " elements, this rank's part has " + std::to_string(needed));
}

std::span<std::byte> bytes(void* data, size_t nbytes) { return {static_cast<std::byte*>(data), nbytes}; }
std::span<const std::byte> bytes(const void* data, size_t nbytes) {
  return {static_cast<const std::byte*>(data), nbytes};
}

std::byte* own_part(void* all, const std::vector<size_t>& parts, int32_t rank, DType dtype) {
  const size_t before = std::accumulate(parts.begin(), parts.begin() + rank, size_t{0});
  return static_cast<std::byte*>(all) + before * dtype_size(dtype);
}

Status allocate(const char* operation, size_t nbytes, CollectiveBuffers& buffers) {
  buffers.memory = untouched_memory(nbytes);
  if (buffers.memory) return {};
  return Status(Code::kNoMemory, std::string(operation) + ": no memory on the host for the " +
                                     std::to_string(nbytes) + " bytes that are copied from or to " +
                                     buffers.device->name())
      .with_operation(operation);
}

}  // namespace

template <typename Start>
Session::Collective Session::Impl::make_collective(const char* kind, size_t nbytes,
                                                   const CallOptions& options,
                                                   const CollectiveBuffers& buffers, Start start) {
  return [=, this](Mode mode) -> Result<std::shared_ptr<Operation>> {
    HostCall call(*this);
    if (!call.status().ok()) return call.status();
    const transport::Time deadline = loop().now() + timeout_of(options);
    const auto copy = [=, this](const CollectiveBuffers::Transfer& transfer, bool to_host,
                                std::function<void(const Status&)> then) {
      const std::string limit = options.limit_or("step_timeout = " + config.text("step_timeout"));
      engine().buffer_copier().start(
          {buffers.device, buffers.after, transfer.to, transfer.from, transfer.nbytes, to_host, deadline,
           limit},
          [kind, to_host, memory = buffers.memory, then](const Status& status) {
            if (status.ok()) return then(status);
            then(Status(status.code(),
                        std::string(kind) +
                            (to_host ? " cannot read its buffer: " : " cannot write its result: ") +
                            status.message())
                     .with_rank(status.rank(), status.host()));
          });
    };
    return launch(kind, nbytes, mode, options, [=](const std::function<void(const Status&)>& done) {
      CallOptions given = options;
      if (buffers.fetch.nbytes > 0)
        given.fetch = [copy, fetch = buffers.fetch](auto then) { copy(fetch, true, then); };
      start(
          [copy, store = buffers.store, done, memory = buffers.memory](const Status& status) {
            if (!status.ok() || store.nbytes == 0) return done(status);
            copy(store, false, done);
          },
          given);
    });
  };
}

Result<Session::Collective> Session::allreduce(const void* send, void* receive, size_t nbytes, DType dtype,
                                               Reduction reduction, const CallOptions& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(check_reduction("dsgd_allreduce", dtype, reduction));
  DSGD_RETURN_IF_ERROR(check_aligned("all-reduce", "`send`", send, dtype));
  DSGD_RETURN_IF_ERROR(check_aligned("all-reduce", "`receive`", receive, dtype));
  DSGD_RETURN_IF_ERROR(check_apart("all-reduce", send, receive, nbytes));
  const Impl::Buffer to{"`receive`", receive, nbytes};
  auto buffers = impl_->locate_buffers("all-reduce", {"`send`", send, nbytes}, &to, options);
  if (!buffers.ok()) return buffers.status();
  void* data = receive;
  if (buffers->receive) {
    DSGD_RETURN_IF_ERROR(allocate("all-reduce", nbytes, buffers.value()));
    data = buffers->memory.get();
    buffers->store = {receive, data, nbytes};
  }
  if (buffers->send) buffers->fetch = {data, send, nbytes};
  const void* const copied = buffers->send ? data : send;
  return impl_->make_collective(
      "all-reduce", nbytes, options, buffers.value(), [=, this](auto done, const CallOptions& given) {
        if (copied != data && nbytes > 0) std::memcpy(data, copied, nbytes);
        impl_->engine().collectives().allreduce(bytes(data, nbytes), dtype, reduction, done, given);
      });
}

Result<Session::Collective> Session::broadcast(void* data, size_t nbytes, DType dtype, int32_t root,
                                               const CallOptions& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(check_aligned("broadcast", "the buffer", data, dtype));
  auto place = impl_->place_in_view();
  if (!place.ok()) return place.status();
  if (root < 0 || root >= place->size) {
    return invalid("broadcast", "root " + std::to_string(root) + " is none of the ranks 0 .. " +
                                    std::to_string(place->size - 1));
  }
  auto buffers = impl_->locate_buffers("broadcast", {"the buffer", data, nbytes}, nullptr, options);
  if (!buffers.ok()) return buffers.status();
  void* used = data;
  if (buffers->send) {
    DSGD_RETURN_IF_ERROR(allocate("broadcast", nbytes, buffers.value()));
    used = buffers->memory.get();
    if (root == place->rank) {
      buffers->fetch = {used, data, nbytes};
    } else {
      buffers->store = {data, used, nbytes};
    }
  }
  return impl_->make_collective(
      "broadcast", nbytes, options, buffers.value(), [=, this](auto done, const CallOptions& given) {
        impl_->engine().collectives().broadcast(bytes(used, nbytes), dtype, root, done, given);
      });
}

Result<Session::Collective> Session::allgather(const void* send, size_t send_nbytes, void* receive,
                                               size_t receive_nbytes, const size_t* element_counts,
                                               DType dtype, const CallOptions& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(check_aligned("all-gather", "`send`", send, dtype));
  DSGD_RETURN_IF_ERROR(check_aligned("all-gather", "`receive`", receive, dtype));
  auto place = impl_->place_in_view();
  if (!place.ok()) return place.status();
  auto parts = part_counts("all-gather", element_counts, receive_nbytes / dtype_size(dtype), place->size);
  if (!parts.ok()) return parts.status();
  DSGD_RETURN_IF_ERROR(
      check_part("all-gather", "`send`", send_nbytes / dtype_size(dtype), parts.value()[place->rank]));
  const Impl::Buffer to{"`receive`", receive, receive_nbytes};
  auto buffers = impl_->locate_buffers("all-gather", {"`send`", send, send_nbytes}, &to, options);
  if (!buffers.ok()) return buffers.status();
  void* all = receive;
  const void* mine = send;
  if (buffers->receive) {
    DSGD_RETURN_IF_ERROR(allocate("all-gather", receive_nbytes, buffers.value()));
    all = buffers->memory.get();
    buffers->store = {receive, all, receive_nbytes};
  }
  if (buffers->send) {
    std::byte* const own = own_part(all, parts.value(), place->rank, dtype);
    buffers->fetch = {own, send, send_nbytes};
    mine = own;
  }
  return impl_->make_collective(
      "all-gather", receive_nbytes, options, buffers.value(),
      [=, this, parts = std::move(parts).value()](auto done, const CallOptions& given) {
        impl_->engine().collectives().allgather(bytes(mine, send_nbytes), bytes(all, receive_nbytes), parts,
                                                dtype, done, given);
      });
}

Result<Session::Collective> Session::reduce_scatter(const void* send, size_t send_nbytes, void* receive,
                                                    size_t receive_nbytes, const size_t* element_counts,
                                                    DType dtype, Reduction reduction,
                                                    const CallOptions& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(check_reduction("dsgd_reduce_scatter", dtype, reduction));
  DSGD_RETURN_IF_ERROR(check_aligned("reduce-scatter", "`send`", send, dtype));
  DSGD_RETURN_IF_ERROR(check_aligned("reduce-scatter", "`receive`", receive, dtype));
  auto place = impl_->place_in_view();
  if (!place.ok()) return place.status();
  auto parts = part_counts("reduce-scatter", element_counts, send_nbytes / dtype_size(dtype), place->size);
  if (!parts.ok()) return parts.status();
  DSGD_RETURN_IF_ERROR(check_part("reduce-scatter", "`receive`", receive_nbytes / dtype_size(dtype),
                                  parts.value()[place->rank]));
  const Impl::Buffer to{"`receive`", receive, receive_nbytes};
  auto buffers = impl_->locate_buffers("reduce-scatter", {"`send`", send, send_nbytes}, &to, options);
  if (!buffers.ok()) return buffers.status();
  const void* all = send;
  void* mine = receive;
  if (buffers->device) {
    DSGD_RETURN_IF_ERROR(
        allocate("reduce-scatter", buffers->send ? send_nbytes : receive_nbytes, buffers.value()));
    void* const memory = buffers->memory.get();
    if (buffers->send) {
      all = memory;
      buffers->fetch = {memory, send, send_nbytes};
    }
    if (buffers->receive) {
      mine = buffers->send ? own_part(memory, parts.value(), place->rank, dtype) : memory;
      buffers->store = {receive, mine, receive_nbytes};
    }
  }
  return impl_->make_collective(
      "reduce-scatter", send_nbytes, options, buffers.value(),
      [=, this, parts = std::move(parts).value()](auto done, const CallOptions& given) {
        impl_->engine().collectives().reduce_scatter(bytes(all, send_nbytes), bytes(mine, receive_nbytes),
                                                     parts, dtype, reduction, done, given);
      });
}

Result<std::shared_ptr<Operation>> Session::barrier(Mode mode, const CallOptions& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  return impl_->launch("barrier", 0, mode, options,
                       [this, options](auto done) { impl_->engine().collectives().barrier(done, options); });
}

Result<std::shared_ptr<Operation>> Session::object_put(const std::string& name, std::span<const uint8_t> data,
                                                       int32_t dtype, std::span<const int64_t> shape,
                                                       Mode mode, const CallOptions& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(check_name("object", name));
  const std::string object_name = std::string(Objects::kPut) + ": object '" + name + "'";
  if (const std::string why = object_mismatch(dtype, shape, data.size()); !why.empty())
    return Status(Code::kInvalidArgument, object_name + ": " + why);
  if (data.size() > Object::kLargest)
    return Status(Code::kLimit, object_name + " has " + std::to_string(data.size()) +
                                    " bytes; objects have at most 1 GiB; share a file instead");
  const SharedObject object(new Object{{data.begin(), data.end()}, dtype, {shape.begin(), shape.end()}});
  const auto operation = impl_->new_operation(Objects::kPut, options);
  operation->set_nbytes(data.size());
  return impl_->launch_for_object(operation, name, mode, [this, name, object, options](auto done) {
    impl_->engine().put_object(name, object, done, options);
  });
}

Result<std::shared_ptr<Operation>> Session::object_delete(const std::string& name, Mode mode,
                                                          const CallOptions& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(check_name("object", name));
  return impl_->launch_for_object(
      impl_->new_operation(Objects::kDelete, options), name, mode,
      [this, name, options](auto done) { impl_->engine().delete_object(name, done, options); });
}

Result<std::shared_ptr<Operation>> Session::object_get(const std::string& name, Mode mode,
                                                       const CallOptions& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(check_name("object", name));
  const auto operation = impl_->new_operation(Objects::kGet, options);
  return impl_->launch_for_object(operation, name, mode, [this, name, operation, options](auto done) {
    const uint64_t ticket = impl_->engine().get_object(
        name,
        [operation, done](Result<SharedObject> object) {
          if (!object.ok()) return done(object.status());
          operation->set_object(std::move(object).value());
          done(Status());
        },
        options);
    operation->set_ticket(ticket);
  });
}

}  // namespace dsgd

// Collectives and objects: arguments are checked here, before any other worker is bothered.

#include <cstring>

#include "core/session/arguments.h"
#include "core/session/session_impl.h"

namespace dsgd {
namespace {

Status check_buffer(const char* operation, const char* which, const void* data, size_t nbytes, DType dtype) {
  const size_t element = dtype_size(dtype);
  auto bad = [&](const std::string& text) {
    return Status(Code::kInvalidArgument, std::string(operation) + ": " + which + " " + text).with_operation(operation);
  };
  if (nbytes % element != 0) {
    return bad("has " + std::to_string(nbytes) + " bytes, no multiple of the " + std::to_string(element) + " of a " +
               dtype_name(dtype));
  }
  if (!data && nbytes > 0) return bad("is NULL");
  if (reinterpret_cast<uintptr_t>(data) % element != 0) {
    return bad("is not aligned to the " + std::to_string(element) + " bytes of a " + dtype_name(dtype));
  }
  return {};
}

Status check_apart(const char* operation, const void* send, const void* receive, size_t nbytes) {
  const auto from = reinterpret_cast<uintptr_t>(send), to = reinterpret_cast<uintptr_t>(receive);
  if (from == to || from + nbytes <= to || to + nbytes <= from) return {};
  return Status(Code::kInvalidArgument, std::string(operation) + ": `send` and `receive` overlap; pass the same pointer twice, or buffers apart")
      .with_operation(operation);
}

Status check_reduction(const char* operation, DType dtype, Reduction reduction) {
  if (reduction != Reduction::kMean || is_floating(dtype)) return {};
  return Status(Code::kInvalidArgument, std::string(operation) + ": the mean of " + dtype_name(dtype) +
                                            " is not defined; take the sum and divide")
      .with_operation(operation);
}

// Elements of each rank: given, or equal parts of `total`.
Result<std::vector<size_t>> part_counts(const char* operation, const size_t* element_counts, size_t total, int32_t size) {
  std::vector<size_t> parts(size);
  if (element_counts) {
    size_t left = total;
    for (int32_t rank = 0; rank < size; ++rank) {
      parts[rank] = element_counts[rank];
      if (element_counts[rank] > left) {
        return Status(Code::kInvalidArgument, std::string(operation) + ": `element_counts` add up to more than the " +
                                                  std::to_string(total) + " elements of the whole buffer (at rank " +
                                                  std::to_string(rank) + ")")
            .with_operation(operation);
      }
      left -= element_counts[rank];
    }
    if (left == 0) return parts;
    return Status(Code::kInvalidArgument, std::string(operation) + ": `element_counts` add up to " +
                                              std::to_string(total - left) + " elements, the whole buffer has " +
                                              std::to_string(total))
        .with_operation(operation);
  }
  if (total % static_cast<size_t>(size) != 0) {
    return Status(Code::kInvalidArgument, std::string(operation) + ": " + std::to_string(total) +
                                              " elements cannot be split evenly among " + std::to_string(size) +
                                              " workers; give `element_counts`")
        .with_operation(operation);
  }
  std::fill(parts.begin(), parts.end(), total / static_cast<size_t>(size));
  return parts;
}

Status check_part(const char* operation, const char* which, size_t given, size_t needed) {
  if (given == needed) return {};
  return Status(Code::kInvalidArgument, std::string(operation) + ": " + which + " has " + std::to_string(given) +
                                            " elements, this rank's part has " + std::to_string(needed))
      .with_operation(operation);
}

std::span<std::byte> bytes(void* data, size_t nbytes) { return {static_cast<std::byte*>(data), nbytes}; }
std::span<const std::byte> bytes(const void* data, size_t nbytes) {
  return {static_cast<const std::byte*>(data), nbytes};
}

}  // namespace

Result<std::shared_ptr<Operation>> Session::allreduce(const void* send, void* receive, size_t nbytes, DType dtype,
                                                     Reduction reduction, Mode mode, const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  Status status = check_buffer("all-reduce", "`send`", send, nbytes, dtype);
  if (status.ok()) status = check_buffer("all-reduce", "`receive`", receive, nbytes, dtype);
  if (status.ok()) status = check_apart("all-reduce", send, receive, nbytes);
  if (status.ok()) status = check_reduction("all-reduce", dtype, reduction);
  if (!status.ok()) return status;
  return impl_->launch("all-reduce", mode, options, [=, this](auto done) {
    if (send != receive && nbytes > 0) std::memcpy(receive, send, nbytes);
    impl_->engine().allreduce(bytes(receive, nbytes), dtype, reduction, done, options);
  });
}

Result<std::shared_ptr<Operation>> Session::broadcast(void* data, size_t nbytes, DType dtype, int32_t root, Mode mode,
                                                     const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  Status status = check_buffer("broadcast", "the buffer", data, nbytes, dtype);
  if (!status.ok()) return status;
  if (root < 0 || root >= impl_->size) {
    return Status(Code::kInvalidArgument, "broadcast: root " + std::to_string(root) + " is none of the ranks 0 .. " +
                                              std::to_string(impl_->size - 1))
        .with_operation("broadcast");
  }
  return impl_->launch("broadcast", mode, options, [=, this](auto done) {
    impl_->engine().broadcast(bytes(data, nbytes), dtype, root, done, options);
  });
}

Result<std::shared_ptr<Operation>> Session::allgather(const void* send, size_t send_nbytes, void* receive,
                                                      size_t receive_nbytes, const size_t* element_counts, DType dtype,
                                                      Mode mode, const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  Status status = check_buffer("all-gather", "`send`", send, send_nbytes, dtype);
  if (status.ok()) status = check_buffer("all-gather", "`receive`", receive, receive_nbytes, dtype);
  if (!status.ok()) return status;
  auto parts = part_counts("all-gather", element_counts, receive_nbytes / dtype_size(dtype), impl_->size);
  if (!parts.ok()) return parts.status();
  status = check_part("all-gather", "`send`", send_nbytes / dtype_size(dtype), parts.value()[impl_->rank]);
  if (!status.ok()) return status;
  return impl_->launch("all-gather", mode, options, [=, this, parts = std::move(parts).value()](auto done) {
    impl_->engine().allgather(bytes(send, send_nbytes), bytes(receive, receive_nbytes), parts, dtype, done, options);
  });
}

Result<std::shared_ptr<Operation>> Session::reduce_scatter(const void* send, size_t send_nbytes, void* receive,
                                                           size_t receive_nbytes, const size_t* element_counts, DType dtype,
                                                           Reduction reduction, Mode mode, const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  Status status = check_buffer("reduce-scatter", "`send`", send, send_nbytes, dtype);
  if (status.ok()) status = check_buffer("reduce-scatter", "`receive`", receive, receive_nbytes, dtype);
  if (status.ok()) status = check_reduction("reduce-scatter", dtype, reduction);
  if (!status.ok()) return status;
  auto parts = part_counts("reduce-scatter", element_counts, send_nbytes / dtype_size(dtype), impl_->size);
  if (!parts.ok()) return parts.status();
  status = check_part("reduce-scatter", "`receive`", receive_nbytes / dtype_size(dtype), parts.value()[impl_->rank]);
  if (!status.ok()) return status;
  return impl_->launch("reduce-scatter", mode, options, [=, this, parts = std::move(parts).value()](auto done) {
    impl_->engine().reduce_scatter(bytes(send, send_nbytes), bytes(receive, receive_nbytes), parts, dtype, reduction,
                                   done, options);
  });
}

Result<std::shared_ptr<Operation>> Session::barrier(Mode mode, const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  return impl_->launch("barrier", mode, options, [this, options](auto done) { impl_->engine().barrier(done, options); });
}

Status Session::object_put(const std::string& name, std::span<const uint8_t> data) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  Status named = check_name("object", name);
  if (!named.ok()) return named;
  if (data.size() > Objects::kLargest) {
    return Status(Code::kLimit, "object '" + name + "' has " + std::to_string(data.size()) +
                                    " bytes; at most 1 GiB can be put, broadcast larger things");
  }
  auto blob = std::make_shared<const std::vector<uint8_t>>(data.begin(), data.end());
  return impl_->block([this, name, blob](auto done) {
    Engine& engine = impl_->engine();
    engine.put_object(name, blob, done);
  });
}

Result<std::shared_ptr<const std::vector<uint8_t>>> Session::object_get(const std::string& name,
                                                                       std::chrono::milliseconds timeout) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  struct Got {
    std::atomic<bool> done{false};
    Status status;
    Objects::Blob blob;
    uint64_t ticket = 0;
  };
  auto got = std::make_shared<Got>();
  transport::Loop& loop = impl_->loop();
  const transport::Duration limit =
      timeout.count() < 0 ? impl_->config.duration("step_timeout") : transport::Duration(timeout);
  const bool came = loop.run(
      [this, name, got] {
        try {
          got->ticket = impl_->engine().get_object(name, [got](Result<Objects::Blob> blob) {
            if (blob.ok()) {
              got->blob = blob.value();
            } else {
              got->status = blob.status();
            }
            got->done = true;
          });
        } catch (const std::bad_alloc&) {
          got->status = impl_->engine().exhausted();
          got->done = true;
          throw;
        }
      },
      got->done, loop.now() + limit);
  if (!came) {
    impl_->block([this, got](auto done) {
      impl_->engine().objects().forget(got->ticket);
      done(Status());
    });
    if (!got->done) {
      return Status(Code::kWaitTimeout, "object '" + name + "' was not put within " +
                                            std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(limit)
                                                               .count()) +
                                            " ms; some worker must call dsgd_object_put with this name");
    }
  }
  if (!got->status.ok()) return got->status;
  return got->blob;
}

}  // namespace dsgd

// Collectives and objects: arguments are checked here, before any other worker is bothered.

#include <cstring>

#include "core/session/arguments.h"
#include "core/session/session_impl.h"

namespace dsgd {
namespace {

Status check_buffer(const char* operation, const char* which, const void* data, size_t nbytes, DType dtype) {
  const size_t element = dtype_size(dtype);
  auto bad = [&](const std::string& text) {
    return Status(Code::kInvalidArgument, std::string(operation) + ": " + which + " " + text)
        .with_operation(operation);
  };
  if (nbytes % element != 0) {
    return bad("has " + std::to_string(nbytes) + " bytes, no multiple of the " + std::to_string(element) +
               " of a " + dtype_name(dtype));
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
  return Status(Code::kInvalidArgument,
                std::string(operation) +
                    ": `send` and `receive` overlap; pass the same pointer twice, or buffers apart")
      .with_operation(operation);
}

Status check_reduction(const char* operation, DType dtype, Reduction reduction) {
  if (reduction != Reduction::kMean || is_floating(dtype)) return {};
  return Status(Code::kInvalidArgument, std::string(operation) + ": the mean of " + dtype_name(dtype) +
                                            " is not defined; take the sum and divide")
      .with_operation(operation);
}

// Elements of each rank: given, or equal parts of `total`.
Result<std::vector<size_t>> part_counts(const char* operation, const size_t* element_counts, size_t total,
                                        int32_t size) {
  std::vector<size_t> parts(size);
  if (element_counts) {
    size_t left = total;
    for (int32_t rank = 0; rank < size; ++rank) {
      parts[rank] = element_counts[rank];
      if (element_counts[rank] > left) {
        return Status(Code::kInvalidArgument,
                      std::string(operation) + ": `element_counts` add up to more than the " +
                          std::to_string(total) + " elements of the whole buffer (at rank " +
                          std::to_string(rank) + ")")
            .with_operation(operation);
      }
      left -= element_counts[rank];
    }
    if (left == 0) return parts;
    return Status(Code::kInvalidArgument, std::string(operation) + ": `element_counts` add up to " +
                                              std::to_string(total - left) +
                                              " elements, the whole buffer has " + std::to_string(total))
        .with_operation(operation);
  }
  if (total % static_cast<size_t>(size) != 0) {
    return Status(Code::kInvalidArgument, std::string(operation) + ": " + std::to_string(total) +
                                              " elements cannot be split evenly among " +
                                              std::to_string(size) + " workers; give `element_counts`")
        .with_operation(operation);
  }
  std::fill(parts.begin(), parts.end(), total / static_cast<size_t>(size));
  return parts;
}

Status check_part(const char* operation, const char* which, size_t given, size_t needed) {
  if (given == needed) return {};
  return Status(Code::kInvalidArgument, std::string(operation) + ": " + which + " has " +
                                            std::to_string(given) + " elements, this rank's part has " +
                                            std::to_string(needed))
      .with_operation(operation);
}

std::span<std::byte> bytes(void* data, size_t nbytes) { return {static_cast<std::byte*>(data), nbytes}; }
std::span<const std::byte> bytes(const void* data, size_t nbytes) {
  return {static_cast<const std::byte*>(data), nbytes};
}

}  // namespace

Result<std::shared_ptr<Operation>> Session::allreduce(const void* send, void* receive, size_t nbytes,
                                                      DType dtype, Reduction reduction, Mode mode,
                                                      const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  Status status = check_buffer("all-reduce", "`send`", send, nbytes, dtype);
  if (status.ok()) status = check_buffer("all-reduce", "`receive`", receive, nbytes, dtype);
  if (status.ok()) status = check_apart("all-reduce", send, receive, nbytes);
  if (status.ok()) status = check_reduction("all-reduce", dtype, reduction);
  if (!status.ok()) return status;
  return impl_->launch("all-reduce", nbytes, mode, options, [=, this](auto done) {
    if (send != receive && nbytes > 0) std::memcpy(receive, send, nbytes);
    impl_->engine().allreduce(bytes(receive, nbytes), dtype, reduction, done, options);
  });
}

Result<std::shared_ptr<Operation>> Session::broadcast(void* data, size_t nbytes, DType dtype, int32_t root,
                                                      Mode mode, const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  Status status = check_buffer("broadcast", "the buffer", data, nbytes, dtype);
  if (!status.ok()) return status;
  if (root < 0 || root >= impl_->size) {
    return Status(Code::kInvalidArgument, "broadcast: root " + std::to_string(root) +
                                              " is none of the ranks 0 .. " + std::to_string(impl_->size - 1))
        .with_operation("broadcast");
  }
  return impl_->launch("broadcast", nbytes, mode, options, [=, this](auto done) {
    impl_->engine().broadcast(bytes(data, nbytes), dtype, root, done, options);
  });
}

Result<std::shared_ptr<Operation>> Session::allgather(const void* send, size_t send_nbytes, void* receive,
                                                      size_t receive_nbytes, const size_t* element_counts,
                                                      DType dtype, Mode mode, const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  Status status = check_buffer("all-gather", "`send`", send, send_nbytes, dtype);
  if (status.ok()) status = check_buffer("all-gather", "`receive`", receive, receive_nbytes, dtype);
  if (!status.ok()) return status;
  auto parts = part_counts("all-gather", element_counts, receive_nbytes / dtype_size(dtype), impl_->size);
  if (!parts.ok()) return parts.status();
  status = check_part("all-gather", "`send`", send_nbytes / dtype_size(dtype), parts.value()[impl_->rank]);
  if (!status.ok()) return status;
  return impl_->launch("all-gather", receive_nbytes, mode, options,
                       [=, this, parts = std::move(parts).value()](auto done) {
                         impl_->engine().allgather(bytes(send, send_nbytes), bytes(receive, receive_nbytes),
                                                   parts, dtype, done, options);
                       });
}

Result<std::shared_ptr<Operation>> Session::reduce_scatter(const void* send, size_t send_nbytes,
                                                           void* receive, size_t receive_nbytes,
                                                           const size_t* element_counts, DType dtype,
                                                           Reduction reduction, Mode mode,
                                                           const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  Status status = check_buffer("reduce-scatter", "`send`", send, send_nbytes, dtype);
  if (status.ok()) status = check_buffer("reduce-scatter", "`receive`", receive, receive_nbytes, dtype);
  if (status.ok()) status = check_reduction("reduce-scatter", dtype, reduction);
  if (!status.ok()) return status;
  auto parts = part_counts("reduce-scatter", element_counts, send_nbytes / dtype_size(dtype), impl_->size);
  if (!parts.ok()) return parts.status();
  status = check_part("reduce-scatter", "`receive`", receive_nbytes / dtype_size(dtype),
                      parts.value()[impl_->rank]);
  if (!status.ok()) return status;
  return impl_->launch(
      "reduce-scatter", send_nbytes, mode, options, [=, this, parts = std::move(parts).value()](auto done) {
        impl_->engine().reduce_scatter(bytes(send, send_nbytes), bytes(receive, receive_nbytes), parts, dtype,
                                       reduction, done, options);
      });
}

Result<std::shared_ptr<Operation>> Session::barrier(Mode mode, const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  return impl_->launch("barrier", 0, mode, options,
                       [this, options](auto done) { impl_->engine().barrier(done, options); });
}

Result<std::shared_ptr<Operation>> Session::object_put(const std::string& name, std::span<const uint8_t> data,
                                                       int32_t dtype, std::span<const int64_t> shape,
                                                       Mode mode, const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  Status named = check_name("object", name);
  if (!named.ok()) return named;
  if (data.size() > Object::kLargest) {
    return Status(Code::kLimit, "object '" + name + "' has " + std::to_string(data.size()) +
                                    " bytes; objects have at most 1 GiB; share a file instead");
  }
  if (const std::string why = object_mismatch(dtype, shape, data.size()); !why.empty()) {
    return Status(Code::kInvalidArgument, "object '" + name + "': " + why);
  }
  const SharedObject object(new Object{{data.begin(), data.end()}, dtype, {shape.begin(), shape.end()}});
  const auto operation =
      std::make_shared<Operation>(impl_->next_id.fetch_add(1), "dsgd_object_put", false, options.user_data);
  operation->set_nbytes(data.size());
  impl_->launch(operation, mode, [this, name, object, operation, options](auto done) {
    operation->set_waiting(impl_->waiting_for_object(operation->name(), name));
    impl_->engine().put_object(name, object, done, options);
  });
  return operation;
}

Result<std::shared_ptr<Operation>> Session::object_delete(const std::string& name, Mode mode,
                                                          const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  Status named = check_name("object", name);
  if (!named.ok()) return named;
  const auto operation = std::make_shared<Operation>(impl_->next_id.fetch_add(1), "dsgd_object_delete", false,
                                                     options.user_data);
  impl_->launch(operation, mode, [this, name, operation, options](auto done) {
    operation->set_waiting(impl_->waiting_for_object(operation->name(), name));
    impl_->engine().delete_object(name, done, options);
  });
  return operation;
}

Result<std::shared_ptr<Operation>> Session::object_get(const std::string& name, Mode mode,
                                                       const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  if (Status named = check_name("object", name); !named.ok()) return named;
  const auto operation =
      std::make_shared<Operation>(impl_->next_id.fetch_add(1), "dsgd_object_get", false, options.user_data);
  impl_->launch(operation, mode, [this, name, operation, options](auto done) {
    operation->set_waiting(impl_->waiting_for_object(operation->name(), name));
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
  return operation;
}

}  // namespace dsgd

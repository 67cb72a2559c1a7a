// The host as a device.
#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "core/device/device.h"
#include "core/optimizer/apply.h"
#include "core/reduce/kernels.h"

namespace dsgd::device {
namespace {

constexpr std::align_val_t kAlignment{256};

Result<std::shared_ptr<void>> zeroed(size_t nbytes) {
  void* data = ::operator new(nbytes ? nbytes : 1, kAlignment, std::nothrow);
  if (!data) return Status(Code::kNoMemory, "cpu: no memory for " + std::to_string(nbytes) + " bytes");
  if (nbytes > 0) std::memset(data, 0, nbytes);
  return std::shared_ptr<void>(data, [](void* memory) { ::operator delete(memory, kAlignment); });
}

class HostEvent final : public DeviceEvent {
 public:
  Result<bool> done() override { return true; }
};

class HostQueue final : public WorkQueue {
 public:
  Status copy(void* to, const void* from, size_t nbytes) override {
    if (nbytes > 0 && to != from) std::memcpy(to, from, nbytes);
    return {};
  }

  Status sum(DType dtype, std::span<const SumPiece> pieces, std::span<const Term> terms, void* bucket,
             NonFinite* found) override {
    const size_t element = dtype_size(dtype);
    for (size_t p = 0; p < pieces.size(); ++p) {
      const SumPiece& piece = pieces[p];
      std::byte* sum = static_cast<std::byte*>(bucket) + piece.position * element;
      if (piece.terms == 0) std::memset(sum, 0, piece.count * element);
      for (uint32_t t = 0; t < piece.terms; ++t) {
        const Term& term = terms[piece.first_term + t];
        (t == 0 ? weighted_set : weighted_add)(is_half(piece.source) ? piece.source : dtype, sum,
                                               term.gradient, piece.count, term.weight,
                                               found ? found + p : nullptr);
      }
    }
    return {};
  }

  // The mean of a part stays in the cache between division and update.
  Status update(DType dtype, std::span<const UpdatePiece> pieces, std::span<void* const> targets,
                const void* bucket) override {
    const size_t element = dtype_size(dtype);
    for (const UpdatePiece& piece : pieces) {
      const std::byte* sums = static_cast<const std::byte*>(bucket) + piece.position * element;
      const std::span<void* const> to = targets.subspan(piece.first_target, piece.targets);
      for (size_t begin = 0; begin < piece.count; begin += kPart) {
        update_part(dtype, piece, begin, std::min<size_t>(kPart, piece.count - begin), sums + begin * element,
                    to);
      }
    }
    return {};
  }

  Status squares(DType dtype, std::span<const SquarePiece> pieces, const void* bucket,
                 double* sums) override {
    const size_t element = dtype_size(dtype);
    for (const SquarePiece& piece : pieces) {
      for (uint64_t begin = 0; begin < piece.count; begin += kSquareRange) {
        const void* range = static_cast<const std::byte*>(bucket) + (piece.position + begin) * element;
        *sums++ = sum_of_squares(dtype, range, std::min<uint64_t>(kSquareRange, piece.count - begin));
      }
    }
    return {};
  }

  Status record(DeviceEvent&) override { return {}; }
  Status wait(DeviceEvent&) override { return {}; }
  Status notify(std::function<void()> done) override {
    done();
    return {};
  }

 private:
  static constexpr size_t kPart = 8192;  // elements

  void update_part(DType dtype, const UpdatePiece& piece, size_t begin, size_t count, const std::byte* sums,
                   std::span<void* const> to) {
    const size_t element = dtype_size(dtype), nbytes = count * element;
    const std::byte* result = sums;
    if (piece.action != Action::kCopy) {
      std::memcpy(scratch_, sums, nbytes);
      divide(dtype, scratch_, count, piece.divisor);
      result = scratch_;
    }
    const size_t target_element = is_half(piece.target) ? dtype_size(piece.target) : element;
    size_t copies_from = 0;
    if (piece.action == Action::kUpdate) {
      void* value = static_cast<std::byte*>(to[0]) + begin * target_element;
      if (is_half(piece.target)) {
        float* const master = static_cast<float*>(piece.master) + begin;
        widen(piece.target, widened_, value, count);
        refresh_masters(piece.target, master, widened_, count);
        value = master;
      }
      void* state[3];
      for (int s = 0; s < 3; ++s)
        state[s] = piece.state[s] ? static_cast<std::byte*>(piece.state[s]) + begin * element : nullptr;
      const void* const in[3] = {state[0], state[1], state[2]};
      apply(piece.rule, dtype, count, scratch_, value, value, {in, piece.rule.state_count},
            {state, piece.rule.state_count});
      result = static_cast<const std::byte*>(value);
      copies_from = is_half(piece.target) ? 0 : 1;
    }
    for (size_t t = copies_from; t < to.size(); ++t) {
      std::byte* place = static_cast<std::byte*>(to[t]) + begin * target_element;
      if (is_half(piece.target)) {
        narrow(piece.target, place, reinterpret_cast<const float*>(result), count);
      } else {
        std::memcpy(place, result, nbytes);
      }
    }
  }

  alignas(64) std::byte scratch_[kPart * sizeof(double)];
  alignas(64) float widened_[kPart];
};

class Host final : public Device {
 public:
  const std::string& name() const override { return name_; }
  const std::string& describe() const override { return name_; }
  int32_t index() const override { return 0; }
  bool is_host() const override { return true; }
  DeviceId identity() const override { return {}; }
  Result<CommunicatorLibrary> load_communicators(const std::string&) override { return no_communicators(); }
  Result<CommunicatorId> new_communicator_id() override { return no_communicators(); }
  Result<std::shared_ptr<void>> allocate(size_t nbytes) override { return zeroed(nbytes); }
  Result<std::shared_ptr<void>> allocate_staging(size_t nbytes) override { return zeroed(nbytes); }
  Result<std::shared_ptr<void>> allocate_staging_parts(size_t nbytes, std::vector<ByteRange>) override {
    return zeroed(nbytes);
  }
  Status check(const void*, size_t) const override { return {}; }  // whatever the host gives is its own
  void release_in_order(std::function<void()> release) override { release(); }
  Result<std::unique_ptr<WorkQueue>> new_queue() override {
    return std::unique_ptr<WorkQueue>(std::make_unique<HostQueue>());
  }
  Result<std::unique_ptr<DeviceEvent>> new_event() override {
    return std::unique_ptr<DeviceEvent>(std::make_unique<HostEvent>());
  }
  Status record_stream(DeviceEvent&, void* stream) override { return no_streams(stream); }
  Status stream_wait(void* stream, DeviceEvent&) override { return no_streams(stream); }

 private:
  static Status no_communicators() { return Status(Code::kUnsupported, "cpu has no communicators"); }
  static Status no_streams(void* stream) {
    if (!stream) return {};
    return Status(Code::kInvalidArgument, "cpu has no streams; a gradient in host memory needs none");
  }

  const std::string name_ = "cpu";
};

}  // namespace

std::shared_ptr<Device> Device::host() {
  static const auto* const kHost = new std::shared_ptr<Device>(std::make_shared<Host>());
  return *kHost;
}

}  // namespace dsgd::device

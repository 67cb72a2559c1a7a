#include "core/reduce/value_digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/reduce/clones.h"

namespace dsgd {
namespace {

constexpr size_t kBlock = 4096;  // values that stay in the cache between two looks

// Bit masks of a type. A NaN has all exponent bits set, and some others.
template <typename Bits>
struct Layout {
  Bits exponent, quiet_nan;
  bool is_nan(Bits bits) const { return static_cast<Bits>(bits << 1) > static_cast<Bits>(exponent << 1); }
};

template <typename Bits>
DSGD_INLINED bool any_nan(Layout<Bits> layout, const Bits* values, size_t count) {
  Bits found = 0;
  for (size_t i = 0; i < count; ++i) found = static_cast<Bits>(found | (layout.is_nan(values[i]) ? 1 : 0));
  return found != 0;
}
DSGD_CLONES bool has_nan(Layout<uint16_t> layout, const uint16_t* values, size_t count) {
  return any_nan(layout, values, count);
}
DSGD_CLONES bool has_nan(Layout<uint32_t> layout, const uint32_t* values, size_t count) {
  return any_nan(layout, values, count);
}
DSGD_CLONES bool has_nan(Layout<uint64_t> layout, const uint64_t* values, size_t count) {
  return any_nan(layout, values, count);
}

template <typename Bits>
void add_floating(XXH3_state_t* state, Layout<Bits> layout, const void* data, size_t count) {
  std::array<Bits, kBlock> block;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t part = std::min(kBlock, count - begin);
    std::memcpy(block.data(), static_cast<const Bits*>(data) + begin, part * sizeof(Bits));
    if (has_nan(layout, block.data(), part)) {
      std::replace_if(
          block.begin(), block.begin() + static_cast<std::ptrdiff_t>(part),
          [layout](Bits bits) { return layout.is_nan(bits); }, layout.quiet_nan);
    }
    XXH3_64bits_update(state, block.data(), part * sizeof(Bits));
  }
}

}  // namespace

struct ValueDigest::State {
  XXH3_state_t xxh;
};

ValueDigest::ValueDigest() : state_(new State) { XXH3_64bits_reset(&state_->xxh); }
ValueDigest::~ValueDigest() = default;

void ValueDigest::add(DType dtype, const void* values, size_t count) {
  XXH3_state_t* state = &state_->xxh;
  switch (dtype) {
    case DType::kFloat16:
      return add_floating<uint16_t>(state, {0x7c00, 0x7e00}, values, count);
    case DType::kBfloat16:
      return add_floating<uint16_t>(state, {0x7f80, 0x7fc0}, values, count);
    case DType::kFloat32:
      return add_floating<uint32_t>(state, {0x7f800000, 0x7fc00000}, values, count);
    case DType::kFloat64:
      return add_floating<uint64_t>(state, {0x7ff0000000000000, 0x7ff8000000000000}, values, count);
    default:
      XXH3_64bits_update(state, values, count * dtype_size(dtype));
  }
}

uint64_t ValueDigest::result() const { return XXH3_64bits_digest(&state_->xxh); }

}  // namespace dsgd

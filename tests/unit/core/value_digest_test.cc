// Digests of values: equal where all bits are, or are NaNs.

#include "core/reduce/value_digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace dsgd {
namespace {

template <typename Bits>
uint64_t digest(DType dtype, const std::vector<Bits>& values, size_t part) {
  ValueDigest digest;
  for (size_t begin = 0; begin < values.size(); begin += part) {
    digest.add(dtype, values.data() + begin, std::min(part, values.size() - begin));
  }
  return digest.result();
}

// `nans` are different bits that mean NaN, `others` bits that do not: infinities, their neighbours, zeros of
// both signs.
template <typename Bits>
void check(DType dtype, const std::vector<Bits>& nans, const std::vector<Bits>& others) {
  std::vector<Bits> values(10'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Bits>(i * 17);
  const uint64_t plain = digest(dtype, values, values.size());
  for (size_t part : {size_t{1}, size_t{4095}, size_t{4096}, size_t{5000}})
    EXPECT_EQ(digest(dtype, values, part), plain) << part;
  for (size_t at : {size_t{0}, size_t{4095}, size_t{4096}, values.size() - 1}) {
    std::vector<Bits> changed = values;
    changed[at] = nans[0];
    const uint64_t with_nan = digest(dtype, changed, values.size());
    EXPECT_NE(with_nan, plain) << at;
    for (Bits nan : nans) {
      changed[at] = nan;
      EXPECT_EQ(digest(dtype, changed, 777), with_nan) << at << ' ' << nan;
    }
    std::vector<uint64_t> seen = {with_nan};
    for (Bits other : others) {
      changed[at] = other;
      seen.push_back(digest(dtype, changed, 777));
    }
    for (size_t a = 0; a < seen.size(); ++a) {
      for (size_t b = 0; b < a; ++b) EXPECT_NE(seen[a], seen[b]) << at << ' ' << a << ' ' << b;
    }
  }
}

TEST(ValueDigest, IsOfBitsButForNaNs) {
  check<uint32_t>(DType::kFloat32, {0x7fc00000, 0xffc00000, 0x7fffffff, 0x7f800001, 0xff800001},
                  {0x7f800000, 0xff800000, 0x7f7fffff, 0, 0x80000000});
  check<uint64_t>(DType::kFloat64,
                  {0x7ff8000000000000, 0xfff8000000000000, 0x7fffffffffffffff, 0x7ff0000000000001},
                  {0x7ff0000000000000, 0xfff0000000000000, 0x7fefffffffffffff, 0, 0x8000000000000000});
  check<uint16_t>(DType::kFloat16, {0x7e00, 0xfe00, 0x7fff, 0x7c01}, {0x7c00, 0xfc00, 0x7bff, 0, 0x8000});
  check<uint16_t>(DType::kBfloat16, {0x7fc0, 0xffc0, 0x7fff, 0x7f81}, {0x7f80, 0xff80, 0x7f7f, 0, 0x8000});
}

TEST(ValueDigest, OfIntegersIsOfAllBits) {
  EXPECT_NE(digest<uint32_t>(DType::kInt32, {0x7fc00000}, 1),
            digest<uint32_t>(DType::kInt32, {0xffc00000}, 1));
  EXPECT_NE(digest<uint64_t>(DType::kInt64, {0x7ff8000000000000}, 1),
            digest<uint64_t>(DType::kInt64, {0xfff8000000000000}, 1));
  EXPECT_NE(digest<uint8_t>(DType::kUint8, {1}, 1), digest<uint8_t>(DType::kUint8, {2}, 1));
}

}  // namespace
}  // namespace dsgd

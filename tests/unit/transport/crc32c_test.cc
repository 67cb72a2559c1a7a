#include "transport/base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace dsgd {
namespace {

std::vector<uint8_t> random_bytes(size_t n) {
  std::mt19937 random(7);
  std::vector<uint8_t> bytes(n);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

TEST(Crc32c, GivesThePublishedValues) {
  std::vector<uint8_t> counting(32);
  for (size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<uint8_t>(i);
  const std::vector<uint8_t> zeros(32, 0), ones(32, 0xff);
  const std::string digits = "123456789";
  for (auto* function : {crc32c, crc32c_portable}) {  // RFC 3720, B.4
    EXPECT_EQ(function(0, nullptr, 0), 0u);
    EXPECT_EQ(function(0, digits.data(), digits.size()), 0xe3069283u);
    EXPECT_EQ(function(0, zeros.data(), zeros.size()), 0x8a9136aau);
    EXPECT_EQ(function(0, ones.data(), ones.size()), 0x62a8ab43u);
    EXPECT_EQ(function(0, counting.data(), counting.size()), 0x46dd794eu);
  }
}

TEST(Crc32c, TheInstructionAgreesWithTheTablesForEverySizeAndAlignment) {
  const std::vector<uint8_t> bytes = random_bytes(40000);
  for (size_t n = 0; n < 1200; ++n) {
    const uint8_t* data = bytes.data() + n % 9;
    ASSERT_EQ(crc32c(n, data, n), crc32c_portable(n, data, n)) << n;
  }
  for (size_t n : {3 * 4096 - 1, 3 * 4096, 3 * 4096 + 1, 6 * 4096 + 385, 39991}) {
    ASSERT_EQ(crc32c(0, bytes.data() + 3, n), crc32c_portable(0, bytes.data() + 3, n)) << n;
  }
}

TEST(Crc32c, SplittingTheBytesChangesNothing) {
  const std::vector<uint8_t> bytes = random_bytes(13000);
  const uint32_t whole = crc32c(0, bytes.data(), bytes.size());
  for (size_t split = 0; split <= bytes.size(); split += 37) {
    ASSERT_EQ(crc32c(crc32c(0, bytes.data(), split), bytes.data() + split, bytes.size() - split), whole)
        << split;
  }
}

TEST(Crc32c, EverySingleFlippedBitChangesIt) {
  std::vector<uint8_t> bytes = random_bytes(300);
  const uint32_t whole = crc32c(0, bytes.data(), bytes.size());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    ASSERT_NE(crc32c(0, bytes.data(), bytes.size()), whole) << bit;
    bytes[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
  }
}

}  // namespace
}  // namespace dsgd

#include "transport/base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define DSGD_CRC32C_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define DSGD_CRC32C_TARGET __attribute__((target("+crc")))
#endif

namespace dsgd {
namespace {

static_assert(std::endian::native == std::endian::little);

// Bits are reflected: the highest bit of a number is the coefficient of x^0.
constexpr uint32_t kPolynomial = 0x82f63b78;
constexpr uint32_t kOne = 0x80000000, kX = 0x40000000;

constexpr uint32_t multiply(uint32_t a, uint32_t b) {  // modulo the polynomial
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b & 1) ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

constexpr uint32_t power_of_x(uint64_t exponent) {
  uint32_t result = kOne;
  for (uint32_t square = kX; exponent != 0; exponent >>= 1, square = multiply(square, square)) {
    if (exponent & 1) result = multiply(result, square);
  }
  return result;
}

uint64_t load_word(const uint8_t* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// ---- tables: 8 bytes at a time ("slicing by 8", Kounavis and Berry 2008)

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) ? (crc >> 1) ^ kPolynomial : crc >> 1;
    tables[0][byte] = crc;
  }
  for (size_t t = 1; t < tables.size(); ++t) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[t - 1][byte];
      tables[t][byte] = (before >> 8) ^ tables[0][before & 255];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

uint32_t update_by_tables(uint32_t crc, const uint8_t* data, size_t n) {
  for (; n >= 8; data += 8, n -= 8) {
    const uint64_t word = load_word(data) ^ crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][(word >> (8 * i)) & 255];
  }
  for (; n > 0; ++data, --n) crc = (crc >> 8) ^ kTables[0][(crc ^ *data) & 255];
  return crc;
}

// ---- the CPU's instruction

#if defined(DSGD_CRC32C_TARGET)

#if defined(__x86_64__)
DSGD_CRC32C_TARGET inline uint64_t add_word(uint64_t crc, uint64_t word) { return _mm_crc32_u64(crc, word); }
DSGD_CRC32C_TARGET inline uint32_t add_byte(uint32_t crc, uint8_t byte) { return _mm_crc32_u8(crc, byte); }
bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
#else
DSGD_CRC32C_TARGET inline uint64_t add_word(uint64_t crc, uint64_t word) {
  return __crc32cd(static_cast<uint32_t>(crc), word);
}
DSGD_CRC32C_TARGET inline uint32_t add_byte(uint32_t crc, uint8_t byte) { return __crc32cb(crc, byte); }
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

// The effect on a checksum of appending kBytes zero bytes, for each of its bytes.
template <size_t kBytes>
struct Shift {
  std::array<std::array<uint32_t, 256>, 4> tables{};
  constexpr Shift() {
    const uint32_t factor = power_of_x(8 * kBytes);
    for (uint32_t t = 0; t < 4; ++t) {
      for (uint32_t byte = 0; byte < 256; ++byte) tables[t][byte] = multiply(factor, byte << (8 * t));
    }
  }
  uint32_t operator()(uint64_t crc) const {
    return tables[0][crc & 255] ^ tables[1][(crc >> 8) & 255] ^ tables[2][(crc >> 16) & 255] ^
           tables[3][(crc >> 24) & 255];
  }
};

// The instruction takes three cycles, and the CPU can begin one in each: three streams of kBytes each, put
// together afterwards.
template <size_t kBytes>
DSGD_CRC32C_TARGET uint32_t update_by_thirds(uint32_t crc, const uint8_t*& data, size_t& n) {
  static constexpr Shift<kBytes> shift;
  for (; n >= 3 * kBytes; data += 3 * kBytes, n -= 3 * kBytes) {
    uint64_t first = crc, second = 0, third = 0;
    for (size_t i = 0; i < kBytes; i += 8) {
      first = add_word(first, load_word(data + i));
      second = add_word(second, load_word(data + kBytes + i));
      third = add_word(third, load_word(data + 2 * kBytes + i));
    }
    crc = shift(shift(first) ^ second) ^ static_cast<uint32_t>(third);
  }
  return crc;
}

DSGD_CRC32C_TARGET uint32_t update_by_instruction(uint32_t crc, const uint8_t* data, size_t n) {
  crc = update_by_thirds<4096>(crc, data, n);
  crc = update_by_thirds<128>(crc, data, n);
  for (; n >= 8; data += 8, n -= 8) crc = static_cast<uint32_t>(add_word(crc, load_word(data)));
  for (; n > 0; ++data, --n) crc = add_byte(crc, *data);
  return crc;
}

#else
bool has_instruction() { return false; }
uint32_t update_by_instruction(uint32_t crc, const uint8_t* data, size_t n) {
  return update_by_tables(crc, data, n);
}
#endif

}  // namespace

uint32_t crc32c_portable(uint32_t crc, const void* data, size_t nbytes) {
  return ~update_by_tables(~crc, static_cast<const uint8_t*>(data), nbytes);
}

uint32_t crc32c(uint32_t crc, const void* data, size_t nbytes) {
  static const bool by_instruction = has_instruction();
  if (!by_instruction) return crc32c_portable(crc, data, nbytes);
  return ~update_by_instruction(~crc, static_cast<const uint8_t*>(data), nbytes);
}

}  // namespace dsgd

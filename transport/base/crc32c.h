// CRC32C (Castagnoli, RFC 3720), the checksum of frames.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsgd {

// Continues `crc`, the checksum of the bytes before these (0: there are none). Uses the CPU's CRC instruction
// if it has one.
uint32_t crc32c(uint32_t crc, const void* data, size_t nbytes);
// crc32c() from tables, on every CPU.
uint32_t crc32c_portable(uint32_t crc, const void* data, size_t nbytes);

}  // namespace dsgd

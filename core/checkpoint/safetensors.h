// The header of a safetensors file (https://github.com/huggingface/safetensors, "Format"): eight bytes with
// the length of the header, little-endian; the header, a JSON object with dtype, shape and place of each
// tensor; then the tensors' bytes, one after the other and without holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "transport/base/status.h"

namespace dsgd::checkpoint {

// The format's own limit.
inline constexpr uint64_t kLargestHeader = 100 << 20;
inline constexpr size_t kHeaderLengthBytes = 8;

struct StoredTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, from the end of the header
  bool operator==(const StoredTensor&) const = default;
};

const char* stored_dtype(DType dtype);                                 // "F32"
bool read_stored_dtype(std::string_view text, DType* dtype);           // false: not a dtype of dsgd's
bool count_elements(std::span<const int64_t> shape, uint64_t* count);  // false: negative, or more than 2^46

// Returns the bytes in front of the data, the length included.
std::string write_header(std::span<const StoredTensor> tensors);

// Reads the length of the header from the first bytes of a file of `file_nbytes` bytes.
Result<uint64_t> read_header_length(std::span<const std::byte> first, uint64_t file_nbytes);

// Reads the header, without its length; `data_nbytes` bytes follow it. The tensors come in the order of their
// places and cover the data exactly.
Result<std::vector<StoredTensor>> read_header(std::string_view header, uint64_t data_nbytes);

}  // namespace dsgd::checkpoint

// Chunks into which a task cuts a range of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

namespace dsgd {

// Returns the index of the chunk [offset, offset + nbytes), if it is one of those of `chunk` bytes, the last
// of them shorter, into which [begin, end) is cut.
inline std::optional<size_t> chunk_index(size_t begin, size_t end, size_t chunk, size_t offset,
                                         size_t nbytes) {
  if (offset < begin || offset >= end || (offset - begin) % chunk != 0) return {};
  if (nbytes != std::min(chunk, end - offset)) return {};
  return (offset - begin) / chunk;
}

}  // namespace dsgd

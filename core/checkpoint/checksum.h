// The checksum of a checkpoint's files: XXH3, 64 bits, over parts that come one after the other.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace dsgd::checkpoint {

class Checksum {
 public:
  Checksum() : state_(XXH3_createState(), XXH3_freeState) {}
  bool begin() { return state_ && XXH3_64bits_reset(state_.get()) == XXH_OK; }  // false: no memory
  void add(std::span<const std::byte> part) { XXH3_64bits_update(state_.get(), part.data(), part.size()); }
  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

}  // namespace dsgd::checkpoint

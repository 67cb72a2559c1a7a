// Standard Cap'n Proto framing: from a root struct to bytes and back. Included by the codec only.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>
#include <kj/io.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/schema/field_reader.h"

namespace dsgd::transport {

template <typename Byte>
std::vector<Byte> bytes_of(capnp::MessageBuilder& builder) {
  std::vector<Byte> bytes(capnp::computeSerializedSizeInWords(builder) * sizeof(capnp::word));
  kj::ArrayOutputStream out(kj::arrayPtr(reinterpret_cast<kj::byte*>(bytes.data()), bytes.size()));
  capnp::writeMessage(out, builder);
  return bytes;
}

// `words`: of the first segment; the message grows beyond it where it must.
template <typename Root, typename T>
std::vector<uint8_t> build(size_t words, const T& value) {
  capnp::MallocMessageBuilder builder(static_cast<unsigned>(words));
  write(value, builder.initRoot<Root>());
  return bytes_of<uint8_t>(builder);
}

// Opens `bytes` and hands the root to `use`; returns why they cannot be opened.
template <typename Root, typename Byte, typename Use>
Status open(std::span<const Byte> bytes, size_t limit, Use&& use) {
  if (bytes.size() > limit) {
    return malformed(std::to_string(bytes.size()) + " bytes, more than the " + std::to_string(limit) +
                     " allowed");
  }
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0) {
    return malformed(std::to_string(bytes.size()) + " bytes are not a positive multiple of 8");
  }
  const size_t words = bytes.size() / sizeof(capnp::word);
  kj::Array<capnp::word> copy;  // when the caller's bytes are not aligned
  const auto* begin = reinterpret_cast<const capnp::word*>(bytes.data());
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(capnp::word) != 0) {
    copy = kj::heapArray<capnp::word>(words);
    std::memcpy(copy.begin(), bytes.data(), bytes.size());
    begin = copy.begin();
  }
  try {
    capnp::ReaderOptions options;
    // Each word is visited at most twice (a pointer is looked at when it is checked and when it is read); a
    // word visited more often overlaps; valid messages never need this.
    options.traversalLimitInWords = 2 * words + 64;
    options.nestingLimit = 16;
    capnp::FlatArrayMessageReader reader(kj::arrayPtr(begin, words), options);
    if (reader.getEnd() != begin + words) return malformed("bytes after the end");
    return use(reader.getRoot<Root>());
  } catch (const kj::Exception& exception) {
    return malformed(exception.getDescription().cStr());
  }
}

template <typename T, typename Root, typename Byte>
Result<T> decode(std::span<const Byte> bytes, size_t limit) {
  T value;
  Status status = open<Root>(bytes, limit, [&](typename Root::Reader root) {
    Result<T> result = read(root);
    if (result.ok()) value = std::move(result).value();
    return result.status();
  });
  if (!status.ok()) return status;
  return value;
}

}  // namespace dsgd::transport

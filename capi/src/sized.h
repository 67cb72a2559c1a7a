// Structs that begin with `size_t struct_size`. A caller compiled against an older header has a smaller
// struct, which is never written beyond its end; one compiled against a newer header has a larger one, whose
// unknown tail must be zero, since this library does not know those fields.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "capi/src/call.h"

namespace dsgd::capi {

inline constexpr size_t kLargestStruct = 4096;  // above it a struct_size is garbage

// Fills a caller's struct with `defaults`, and fields that this library does not know with zero. `first_size`
// is the size of the struct in the release that introduced it: a literal number, since sizeof grows with the
// struct.
template <typename T>
Status init_sized(const Call& call, T* target, size_t struct_size, T defaults, size_t first_size,
                  const char* argument) {
  DSGD_RETURN_IF_ERROR(call.not_null(target, argument));
  if (struct_size < first_size || struct_size > kLargestStruct)
    return call.invalid("struct_size " + std::to_string(struct_size) + " is outside " +
                        std::to_string(first_size) + " to " + std::to_string(kLargestStruct) +
                        "; pass sizeof of the struct");
  std::memset(static_cast<void*>(target), 0, struct_size);
  defaults.struct_size = struct_size;
  std::memcpy(static_cast<void*>(target), &defaults, std::min(struct_size, sizeof(T)));
  return {};
}

// Checks a struct that the caller hands over for reading or writing.
template <typename T>
Status check_sized(const Call& call, const T* given, size_t first_size, const char* argument,
                   const char* init_function) {
  DSGD_RETURN_IF_ERROR(call.not_null(given, argument));
  const size_t size = given->struct_size;
  if (size < first_size || size > kLargestStruct)
    return call.invalid(std::string("argument '") + argument + "' has struct_size " + std::to_string(size) +
                        "; call " + init_function + " on it first");
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < size; ++i)
    if (bytes[i] != 0)
      return call.invalid(std::string("argument '") + argument + "' has a field at byte " +
                          std::to_string(i) + " that version " + dsgd_version_string() +
                          " of dsgd does not know; use a newer library or leave it zero");
  return {};
}

// Writes `value` into a struct that passed check_sized.
template <typename T>
void write_sized(T* target, T value) {
  value.struct_size = target->struct_size;
  std::memcpy(static_cast<void*>(target), &value, std::min(target->struct_size, sizeof(T)));
}

// Returns a copy of a struct that passed check_sized; fields that an older caller's struct does not have are
// zero.
template <typename T>
T read_sized(const T* given) {
  T value{};
  std::memcpy(static_cast<void*>(&value), given, std::min(given->struct_size, sizeof(T)));
  return value;
}

}  // namespace dsgd::capi

// Reads the fields of untrusted Cap'n Proto input and keeps the first error. Included by the codec only.
#pragma once

#include <capnp/blob.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "transport/base/status.h"
#include "transport/loop.h"
#include "transport/schema/codec.h"
#include "wire.capnp.h"  // generated

namespace dsgd::transport {

Status malformed(const std::string& what);
// Makes text of another process safe for messages and logs: replaces invalid UTF-8, and control characters
// except the newline, by '?'.
std::string printable_text(std::string text);

inline constexpr size_t kNoLimit = SIZE_MAX;

class FieldReader {
 public:
  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  void fail(const std::string& what);
  // Fails if `n` exceeds `limit`. Returns ok().
  bool length(size_t n, size_t limit, const char* field, const char* unit);

  template <typename Number>
    requires std::is_arithmetic_v<Number>
  void read(Number from, Number* to) {
    *to = from;
  }
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  void read(Number from, Number* to, const char* field, size_t limit, const char* unit) {
    length(from, limit, field, unit);
    *to = from;
  }
  void read(int64_t from, Duration* to) { *to = Duration(from); }
  void read(int32_t from, Code* to) { *to = code_of(from); }
  // A number that stands for one of the values up to `last`.
  template <typename Number, typename Enum>
    requires std::is_enum_v<Enum>
  void read(Number from, Enum* to, Enum last, const char* field) {
    const auto number = static_cast<uint64_t>(from);
    if (!ok()) return;
    if (number > static_cast<uint64_t>(last))
      return fail("unknown " + (field + (" " + std::to_string(number))));
    *to = static_cast<Enum>(number);
  }
  void read(capnp::Text::Reader from, std::string* to, const char* field, size_t limit = kMaxNameBytes);
  void read(capnp::Data::Reader from, std::string* to, const char* field, size_t limit);
  void read(capnp::Data::Reader from, std::vector<uint8_t>* to, const char* field, size_t limit);
  template <size_t kSize>
  void read(capnp::Data::Reader from, std::array<uint8_t, kSize>* to, const char* field) {
    if (!ok()) return;
    if (from.size() != kSize) {
      return fail(std::string(field) + " has " + std::to_string(from.size()) + " bytes instead of " +
                  std::to_string(kSize));
    }
    std::copy(from.begin(), from.end(), to->begin());
  }
  // `each`: the check of each entry.
  template <typename List, typename T, typename... Each>
  void read(const List& from, std::vector<T>* to, const char* field, size_t limit, Each... each) {
    if (!ok() || !length(from.size(), limit, field, "entries")) return;
    if constexpr (std::is_arithmetic_v<T>) to->reserve(from.size());
    for (auto entry : from) {
      if (!ok()) return;
      read(entry, &to->emplace_back(), each...);
    }
  }
  void read(schema::Status::Reader from, Status* to);
  template <typename Part, typename T>
    requires requires { typename Part::Reads; }
  void read(Part from, T* to) {
    if (ok()) fields(*this, *to, from);
  }

 private:
  Status status_;
};

}  // namespace dsgd::transport

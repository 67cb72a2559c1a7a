// Each struct lists its fields once, in fields(codec, value, part). `codec` decides the use: a FieldWriter
// writes `value` to the Builder `part`; a FieldReader reads it from the Reader `part`; a WordCounter
// (codec_capnp.cc) counts words, and `part` is null. The macros use the names `codec`, `value` and `part` of
// the function around them. Included by the codec only.
#pragma once

#include <capnp/blob.h>
#include <kj/string.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "transport/base/status.h"
#include "transport/loop.h"
#include "transport/messages.h"
#include "transport/schema/field_reader.h"
#include "wire.capnp.h"  // generated

// `Name`: of the field in wire.capnp. `member`: of the struct. Then the check of what is read, which are the
// further arguments of FieldReader::read().
#define DSGD_FIELD(Name, member, ...) /* a number, an enumerator, a text or bytes */ \
  DSGD_FIELD_WITH(part.set##Name(wire_form(value.member)), Name, member, __VA_ARGS__)
#define DSGD_LIST(Name, member, ...)                                                                      \
  DSGD_FIELD_WITH(                                                                                        \
      write_list(codec, value.member, part.init##Name(static_cast<unsigned>(value.member.size()))), Name, \
      member, __VA_ARGS__)
#define DSGD_STRUCT(Name, member) \
  DSGD_FIELD_WITH(if (present(value.member)) fields(codec, value.member, part.init##Name()), Name, member)
#define DSGD_FIELD_WITH(write, Name, member, ...) /* `write`: the statement that writes it */ \
  do {                                                                                        \
    if constexpr (kReads<decltype(codec)>) {                                                  \
      codec.read(part.get##Name(), &value.member __VA_OPT__(, ) __VA_ARGS__);                 \
    } else if constexpr (kWrites<decltype(codec)>) {                                          \
      write;                                                                                  \
    } else {                                                                                  \
      codec.add(value.member);                                                                \
    }                                                                                         \
  } while (false)

namespace dsgd::transport {

template <typename V, typename T>
concept Is = std::same_as<std::remove_const_t<V>, T>;

class FieldWriter {};

template <typename Codec>
inline constexpr bool kReads = std::derived_from<std::remove_reference_t<Codec>, FieldReader>;
template <typename Codec>
inline constexpr bool kWrites = std::derived_from<std::remove_reference_t<Codec>, FieldWriter>;

// A value as its Builder takes it.
template <typename T>
  requires std::is_arithmetic_v<T>
T wire_form(T from) {
  return from;
}
template <typename Enum>
  requires std::is_enum_v<Enum>
auto wire_form(Enum from) {
  return static_cast<std::underlying_type_t<Enum>>(from);
}
// Role is the only enum of wire.capnp; the others travel as integers.
inline schema::Role wire_form(Role from) { return static_cast<schema::Role>(from); }
inline int64_t wire_form(Duration from) { return from.count(); }
inline kj::StringPtr wire_form(const std::string& from) { return {from.c_str(), from.size()}; }
template <typename Bytes>
capnp::Data::Reader data_of(const Bytes& from) {
  return {reinterpret_cast<const kj::byte*>(from.data()), from.size()};
}
template <size_t kSize>
capnp::Data::Reader wire_form(const std::array<uint8_t, kSize>& from) {
  return data_of(from);
}
inline capnp::Data::Reader wire_form(const std::vector<uint8_t>& from) { return data_of(from); }

// Whether a struct is written; one that is absent is read as its default.
template <typename T>
bool present(const T&) {
  return true;
}
inline bool present(const Status& status) { return !status.ok(); }

template <typename T, typename Builder>
void write_list(auto& codec, const std::vector<T>& from, Builder to) {
  for (unsigned i = 0; i < to.size(); ++i) {
    if constexpr (requires { to.set(i, wire_form(from[i])); }) {
      to.set(i, wire_form(from[i]));
    } else {
      fields(codec, from[i], to[i]);
    }
  }
}

}  // namespace dsgd::transport

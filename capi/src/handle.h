// The base of every handle: a tag that names its kind. It is checked before anything else of the handle is read, so a freed handle
// or one of another kind is detected. This catches mistakes of hosts without types (a void * in a table of a foreign language). It
// does not protect against memory that was returned to the system.
#pragma once

#include <cstdint>

namespace dsgd::capi {

// Eight letters as a number, so that a debugger shows what a handle is.
constexpr uint64_t tag_of(const char (&letters)[9]) {
  uint64_t tag = 0;
  for (int i = 7; i >= 0; --i) tag = tag << 8 | static_cast<uint8_t>(letters[i]);
  return tag;
}

class Handle {
 public:
  explicit Handle(uint64_t tag) : tag_(tag) {}
  ~Handle() { tag_ = 0; }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  uint64_t tag() const { return tag_; }

 private:
  volatile uint64_t tag_;  // volatile: a compiler may drop a plain store to an object that is about to end
};

template <typename T>
bool is_handle(const T* handle) {
  return handle != nullptr && handle->tag() == T::kTag;
}

// For the *_free functions: NULL is fine, and what is not a T is left alone.
template <typename T>
void free_handle(T* handle) noexcept {
  if (is_handle(handle)) delete handle;
}

}  // namespace dsgd::capi

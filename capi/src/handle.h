// The base of every handle: a tag that names its kind. It is checked before anything else of the handle is
// read, so a freed handle or one of another kind is detected. This catches mistakes of hosts without types (a
// void * in a table of a foreign language). It does not protect against memory that was returned to the
// system.
//
// A session or an op may be freed while calls on it are in progress in other threads. These calls keep it,
// and the last one out deletes it.
#pragma once

#include <atomic>
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
  ~Handle() { tag_.store(0, std::memory_order_relaxed); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  uint64_t tag() const { return tag_.load(std::memory_order_relaxed); }

 private:
  friend class KeptHandle;
  std::atomic<uint64_t> tag_;
};

// A handle that calls in progress keep.
class KeptHandle : public Handle {
 public:
  using Handle::Handle;
  void keep() { uses_.fetch_add(1, std::memory_order_relaxed); }
  // Returns true for the last user.
  bool let_go() { return uses_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  // Invalidates the tag when the host frees the handle. Returns false if it was freed before. Call let_go()
  // next.
  bool retire() { return tag_.exchange(0, std::memory_order_acq_rel) != 0; }

 private:
  std::atomic<int> uses_{1};  // the host's, and one for each call in progress
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

// The base of every handle: a tag that names its kind. It is checked before anything else of the handle is
// read, so a freed handle or one of another kind is detected. This catches mistakes of hosts without types (a
// void * in a table of a foreign language). It does not protect against memory that was returned to the
// system.
//
// A session or an op may be freed while calls on it are in progress in other threads. Each call holds a
// reference; the last reference deletes the handle.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dsgd::capi {

// Eight letters of the name after "dsgd_" as a number, so that a debugger shows what a handle is.
constexpr uint64_t tag_of(std::string_view name) {
  uint64_t tag = 0;
  for (size_t i = 13; i-- > 5;) tag = tag << 8 | static_cast<uint8_t>(i < name.size() ? name[i] : ' ');
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
  friend class CountedHandle;
  std::atomic<uint64_t> tag_;
};

// A handle with a count of references: the host's, and one for each call in progress.
class CountedHandle : public Handle {
 public:
  using Handle::Handle;
  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  // Returns true if the caller must delete the handle: this was the last reference.
  bool release() { return references_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  // Invalidates the tag when the host frees the handle. Returns false if it was freed before. Call release()
  // next.
  bool invalidate() { return tag_.exchange(0, std::memory_order_acq_rel) != 0; }

 private:
  std::atomic<int> references_{1};
};

// The base of the handle T, whose T::kName is "dsgd_config" or the like.
template <typename T, typename Base = Handle>
class HandleOf : public Base {
 protected:
  HandleOf() : Base(tag_of(T::kName)) {}
};

template <typename T>
bool is_handle(const T* handle) {
  return handle != nullptr && handle->tag() == tag_of(T::kName);
}

// For the *_free functions: NULL is fine, and what is not a T is left alone.
template <typename T>
void free_handle(T* handle) noexcept {
  if (is_handle(handle)) delete handle;
}

}  // namespace dsgd::capi

// Receive buffers, reused because fresh pages cost several times a copy. Bounded: what is in use never
// exceeds the limit, and what is kept for reuse is a part of it.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>

namespace dsgd::transport::uv {

class BufferPool {
 public:
  explicit BufferPool(size_t limit) : limit_(limit) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer() { reset(); }
    void reset();
    std::byte* data() const { return data_; }
    size_t size() const { return size_; }
    explicit operator bool() const { return data_ != nullptr; }

   private:
    friend class BufferPool;
    std::shared_ptr<BufferPool> pool_;
    std::byte* data_ = nullptr;
    size_t size_ = 0;
  };

  // Empty when the limit plus `beyond` would be exceeded, or memory is out: `freed` is then called once when
  // a buffer has come back. Contents undefined; aligned to 64 bytes.
  static Buffer get(const std::shared_ptr<BufferPool>& pool, size_t size, size_t beyond = 0);

  // Called from whatever thread gives a buffer back, once after each failure of get().
  void set_freed(std::function<void()> freed);

  size_t in_use() const;
  size_t peak() const;

 private:
  static constexpr int kFirstClass = 8, kClasses = 27;  // powers of two, 256 bytes to 64 MiB and a header
  static int class_of(size_t size);
  void put(std::byte* data, size_t size);

  const size_t limit_;
  mutable std::mutex mutex_;
  // The first free buffer of each class. A free buffer begins with a pointer to the next one.
  std::array<std::byte*, kClasses> free_{};
  size_t in_use_ = 0, peak_ = 0, kept_ = 0;
  bool wanted_ = false;
  std::function<void()> freed_;
};

}  // namespace dsgd::transport::uv

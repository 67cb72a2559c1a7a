#include "transport/uv/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

namespace dsgd::transport::uv {

namespace {
constexpr std::align_val_t kAlign{64};

// Takes the first buffer off a list of free ones.
std::byte* take(std::byte*& first) {
  std::byte* const taken = first;
  std::memcpy(&first, taken, sizeof first);
  return taken;
}
}  // namespace

BufferPool::~BufferPool() {
  for (std::byte*& first : free_) {
    while (first) ::operator delete(take(first), kAlign);
  }
}

int BufferPool::class_of(size_t size) {
  return std::max(static_cast<int>(std::bit_width(size - 1)), kFirstClass) - kFirstClass;
}

BufferPool::Buffer BufferPool::get(const std::shared_ptr<BufferPool>& pool, size_t size, size_t beyond) {
  size = std::max<size_t>(size, 1);
  const int index = class_of(size);
  Buffer buffer;
  if (index >= kClasses) return buffer;
  const size_t rounded = size_t{1} << (index + kFirstClass);
  {
    std::lock_guard lock(pool->mutex_);
    if (size > pool->limit_ + beyond || pool->in_use_ > pool->limit_ + beyond - size) {
      pool->wanted_ = true;
      return buffer;
    }
    if (std::byte*& first = pool->free_[index]) {
      buffer.data_ = take(first);
      pool->kept_ -= rounded;
    }
    pool->in_use_ += size;
    pool->peak_ = std::max(pool->peak_, pool->in_use_);
  }
  buffer.size_ = size;
  buffer.pool_ = pool;
  if (!buffer.data_) {
    buffer.data_ = static_cast<std::byte*>(::operator new(rounded, kAlign, std::nothrow));
    if (!buffer.data_) {
      std::lock_guard lock(pool->mutex_);
      pool->in_use_ -= size;
      pool->wanted_ = true;
      buffer.pool_.reset();
      buffer.size_ = 0;
    }
  }
  return buffer;
}

void BufferPool::put(std::byte* data, size_t size) {
  const int index = class_of(size);
  const size_t rounded = size_t{1} << (index + kFirstClass);
  {
    std::lock_guard lock(mutex_);
    in_use_ -= size;
    if (std::exchange(wanted_, false) && freed_) freed_();
    if (kept_ + rounded <= limit_ / 4) {
      std::memcpy(data, &free_[index], sizeof free_[index]);
      free_[index] = data;
      kept_ += rounded;
      return;
    }
  }
  ::operator delete(data, kAlign);
}

void BufferPool::set_freed(std::function<void()> freed) {
  std::lock_guard lock(mutex_);
  freed_ = std::move(freed);
}

size_t BufferPool::in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}

size_t BufferPool::peak() const {
  std::lock_guard lock(mutex_);
  return peak_;
}

BufferPool::Buffer& BufferPool::Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  pool_ = std::move(other.pool_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void BufferPool::Buffer::reset() {
  if (data_) pool_->put(data_, size_);
  data_ = nullptr;
  size_ = 0;
  pool_.reset();
}

}  // namespace dsgd::transport::uv

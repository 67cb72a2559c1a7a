#include "transport/uv/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "transport/network.h"

namespace dsgd::transport::uv {

namespace {
constexpr std::align_val_t kAlign{64};
}

BufferPool::~BufferPool() {
  for (auto& list : free_) {
    for (std::byte* data : list) ::operator delete(data, kAlign);
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
    if (pool->saving_ && size > kSmallBytes) return buffer;
    if (size > pool->limit_ + beyond || pool->in_use_ > pool->limit_ + beyond - size) {
      pool->wanted_ = true;
      return buffer;
    }
    auto& list = pool->free_[index];
    if (!list.empty()) {
      buffer.data_ = list.back();
      list.pop_back();
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
    try {
      if (wanted_ && freed_) freed_();
      wanted_ = false;
      if (!saving_ && kept_ + rounded <= limit_ / 4) {
        free_[index].push_back(data);
        kept_ += rounded;
        return;
      }
    } catch (const std::bad_alloc&) {  // the next buffer that comes back calls freed_
    }
  }
  ::operator delete(data, kAlign);
}

void BufferPool::save() {
  std::lock_guard lock(mutex_);
  saving_ = true;
  for (auto& list : free_) {
    for (std::byte* data : list) ::operator delete(data, kAlign);
    list.clear();
  }
  kept_ = 0;
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

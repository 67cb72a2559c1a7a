// Attempts that follow one another, of which only the present one counts.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace dsgd {

template <typename Self>
class Attempts : public std::enable_shared_from_this<Self> {
 protected:
  // Callbacks of earlier attempts are ignored from here on.
  void end_attempt() { ++attempt_; }
  // Returns a callback of the present attempt, which calls f(self, ...). It is ignored when the attempt has
  // ended or the object is gone.
  template <typename F>
  auto guard(F f) {
    return [weak = this->weak_from_this(), attempt = attempt_, f = std::move(f)](auto&&... arguments) {
      auto self = weak.lock();
      if (self && self->attempt_ == attempt) f(*self, std::forward<decltype(arguments)>(arguments)...);
    };
  }

 private:
  uint64_t attempt_ = 0;
};

}  // namespace dsgd

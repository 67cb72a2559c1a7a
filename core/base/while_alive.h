// Callbacks that are ignored once the object that they call is gone.
#pragma once

#include <memory>
#include <utility>

namespace dsgd {

// Returns a callback that calls f(object, ...), and does nothing if the object is gone.
template <typename T, typename F>
auto while_alive(std::weak_ptr<T> object, F f) {
  return [object = std::move(object), f = std::move(f)](auto&&... arguments) {
    if (auto self = object.lock()) f(*self, std::forward<decltype(arguments)>(arguments)...);
  };
}

// Returns a callback that calls f(...), and does nothing once `alive` is gone. f may destroy the object that
// owns `alive`.
template <typename F>
auto if_alive(std::weak_ptr<int> alive, F f) {
  return [alive = std::move(alive), f = std::move(f)](auto&&... arguments) {
    if (!alive.expired()) f(std::forward<decltype(arguments)>(arguments)...);
  };
}

}  // namespace dsgd

// Runs a part of a shutdown so that an allocation failure in it does not keep the other parts from running.
#pragma once

#include <new>

namespace dsgd {

// Runs `work`. Returns false if it threw std::bad_alloc.
template <typename Work>
bool catch_bad_alloc(const Work& work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace dsgd

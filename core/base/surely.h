// What is done on the way out, part by part, whatever another part has had no memory for.
#pragma once

#include <new>

namespace dsgd {

// False: there was no memory for it.
template <typename Work>
bool surely(const Work& work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace dsgd

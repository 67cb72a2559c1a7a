// Comes before samples/c/digits.cu when the tests compile it for the host, with kernels as work in the
// streams of a fake runtime.
#pragma once

#include <cuda_runtime.h>
#include <device_launch_parameters.h>

#include <cstdlib>
#include <string>

#include "tests/unit/device/fake_cuda.h"

// Backwards, since nothing may depend on the order of threads.
template <typename Element>
void launch_on_fake(cudaStream_t stream, int count, Element element) {
  fake_cuda::enqueue(stream, [count, element] {
    for (int index = count; index-- > 0;) element(index);
  });
}

// FAKE_CUDA_DELAYS=A,B: microseconds that each piece of work takes on the first GPU and on the second.
inline const bool delays_set = [] {
  const char* delays = std::getenv("FAKE_CUDA_DELAYS");
  for (int device = 0; delays && *delays && device < 2; ++device) {
    fake_cuda::set_delay(device,
                         std::chrono::microseconds(std::strtol(delays, const_cast<char**>(&delays), 10)));
    if (*delays == ',') ++delays;
  }
  fake_cuda::allow_pageable();
  return true;
}();

// Algorithms and a strategy that a host might register, and GPUs of a fake runtime.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/session/session.h"
#include "tests/unit/collectives/algorithms.h"
#ifdef DSGD_TEST_CUDA
#include "tests/unit/device/fake_cuda.h"
extern "C" const dsgd::device::Backend* dsgd_cuda_backend(void);
#endif

namespace dsgd::simulation {

// Two algorithms, and a strategy that deals ranges out to the workers in turn.
inline Registered registered() {
  Registered all;
  const auto algorithm = [](auto write) {
    return [write](int32_t rank, int32_t size, uint64_t count, std::vector<Transfer>* transfers) {
      write(rank, size, count,
            [&](int32_t kind, int32_t round, int32_t peer, uint64_t begin, uint64_t length) {
              transfers->push_back({static_cast<TransferKind>(kind), round, peer, begin, length});
            });
      return Status();
    };
  };
  all.algorithms["doubling"] = algorithm([](int32_t rank, int32_t size, uint64_t count, auto add) {
    dsgd_test::doubling_schedule(rank, size, count, add);
  });
  all.algorithms["tree"] = algorithm([](int32_t rank, int32_t size, uint64_t count, auto add) {
    dsgd_test::tree_schedule(rank, size, count, add);
  });
  RegisteredStrategy dealt;
  dealt.update_at_owner = true;
  dealt.owner = [](const std::string& parameter, uint64_t begin, uint64_t, int32_t size,
                   const std::string&) -> Result<int32_t> {
    return static_cast<int32_t>((static_cast<uint64_t>(parameter.back()) + begin / 4096) %
                                static_cast<uint64_t>(size));
  };
  all.strategies["dealt"] = std::make_shared<const RegisteredStrategy>(dealt);
  return all;
}

inline Registered registered_with_devices() {
  Registered all = registered();
#ifdef DSGD_TEST_CUDA
  static const bool immediate = (fake_cuda::set_immediate(), true);
  (void)immediate;
  all.backends["cuda"] = []() -> Result<const device::Backend*> { return dsgd_cuda_backend(); };
#endif
  return all;
}

}  // namespace dsgd::simulation

// Kernels: functions of (block, thread) that touch disjoint elements, so that a GPU may run them in any order and a test as
// loops on the host. Descriptions of what to do travel as the kernel's own parameters, a batch of pieces at a time, so that
// nothing has to be allocated or copied for a launch. Memory is read and written 16 bytes at a time where it is aligned, and 8
// bytes of half types, which are computed with as float32.
//
// Compiled without contraction of products and sums (-fmad=false): the bits are those of the loops over host memory.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/base/half.h"
#include "core/device/backend.h"

#if defined(__CUDACC__)
#define DSGD_KERNEL __host__ __device__ __forceinline__
#else
#define DSGD_KERNEL inline
#endif

namespace dsgd::device::cuda {

struct Block {
  uint32_t index, thread, threads;
};

inline constexpr uint32_t kThreads = 256;
inline constexpr uint32_t kElementsPerBlock = 8192;  // of whichever type: enough for each thread, few enough to fill the GPU
inline constexpr uint32_t blocks_of(uint64_t count) {
  return static_cast<uint32_t>((count + kElementsPerBlock - 1) / kElementsPerBlock);
}

// As many elements as one thread reads at once: 16 bytes of what is computed with.
template <typename Stored>
struct Lane {
  static constexpr uint32_t kCount = 16 / sizeof(Wide<Stored>);
  Stored element[kCount];
};
#if defined(__CUDA_ARCH__)
template <size_t kBytes>
struct Word;
template <>
struct Word<16> {
  using Type = uint4;
};
template <>
struct Word<8> {
  using Type = uint2;
};
#endif

template <typename Stored>
DSGD_KERNEL bool aligned(const Stored* data) {
  return reinterpret_cast<uintptr_t>(data) % sizeof(Lane<Stored>) == 0;
}
template <typename Stored>
DSGD_KERNEL Lane<Stored> load(const Stored* data) {
#if defined(__CUDA_ARCH__)
  const auto bits = *reinterpret_cast<const typename Word<sizeof(Lane<Stored>)>::Type*>(data);
  return *reinterpret_cast<const Lane<Stored>*>(&bits);
#else
  Lane<Stored> lane;
  std::memcpy(&lane, data, sizeof lane);
  return lane;
#endif
}
template <typename Stored>
DSGD_KERNEL void store(Stored* data, const Lane<Stored>& lane) {
#if defined(__CUDA_ARCH__)
  using Type = typename Word<sizeof(Lane<Stored>)>::Type;
  *reinterpret_cast<Type*>(data) = *reinterpret_cast<const Type*>(&lane);
#else
  std::memcpy(data, &lane, sizeof lane);
#endif
}

// The elements of a piece that a thread of a block takes: whole lanes, each thread's beside the next one's; then, one by one,
// those that fill no lane, or all if something is not aligned.
template <typename T, typename Lanes, typename Ones>
DSGD_KERNEL void for_elements(Block block, uint64_t begin, uint64_t end, bool in_lanes, Lanes lanes, Ones ones) {
  constexpr uint32_t kLane = Lane<T>::kCount;
  uint64_t rest = begin;
  if (in_lanes) {
    rest = begin + (end - begin) / kLane * kLane;
    for (uint64_t i = begin + uint64_t{block.thread} * kLane; i < rest; i += uint64_t{block.threads} * kLane) lanes(i);
  }
  for (uint64_t i = rest + block.thread; i < end; i += block.threads) ones(i);
}

// Which piece a block works on: the last that begins at it or before.
template <typename Piece>
DSGD_KERNEL uint32_t piece_of(const Piece* pieces, uint32_t count, uint32_t block) {
  uint32_t low = 0, high = count - 1;
  while (low < high) {
    const uint32_t middle = (low + high + 1) / 2;
    if (pieces[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// bucket = sum of weight * gradient over the replicas of this device, gathered into the bucket's layout ("fuse") in one pass.
template <typename Stored>
struct SumKernel {
  using T = Wide<Stored>;
  static constexpr uint32_t kPieces = 48, kTerms = 128;
  struct Piece {
    T* sum;
    uint64_t count;
    uint32_t first_block;
    uint16_t first_term, terms;
    bool add;  // to what is there, for pieces with more terms than one launch has room for
  };
  struct WeightedTerm {
    const Stored* gradient;
    T weight;
  };
  uint32_t pieces = 0, terms = 0, blocks = 0;
  Piece piece[kPieces];
  WeightedTerm term[kTerms];

  DSGD_KERNEL void operator()(Block block) const {
    const Piece& p = piece[piece_of(piece, pieces, block.index)];
    const uint64_t begin = uint64_t{block.index - p.first_block} * kElementsPerBlock;
    const uint64_t end = begin + kElementsPerBlock < p.count ? begin + kElementsPerBlock : p.count;
    bool in_lanes = aligned(p.sum);
    for (uint32_t t = 0; t < p.terms; ++t) in_lanes = in_lanes && aligned(term[p.first_term + t].gradient);
    for_elements<T>(
        block, begin, end, in_lanes,
        [&](uint64_t i) {
          Lane<T> sum{};
          if (p.add) sum = load(p.sum + i);
          for (uint32_t t = 0; t < p.terms; ++t) {
            const WeightedTerm& from = term[p.first_term + t];
            const Lane<Stored> gradient = load(from.gradient + i);
            for (uint32_t k = 0; k < Lane<T>::kCount; ++k) {
              const T product = from.weight * widen(gradient.element[k]);
              sum.element[k] = t == 0 && !p.add ? product : sum.element[k] + product;
            }
          }
          store(p.sum + i, sum);
        },
        [&](uint64_t i) {
          T sum = p.add ? p.sum[i] : T{0};
          for (uint32_t t = 0; t < p.terms; ++t) {
            const WeightedTerm& from = term[p.first_term + t];
            const T product = from.weight * widen(from.gradient[i]);
            sum = t == 0 && !p.add ? product : sum + product;
          }
          p.sum[i] = sum;
        });
  }
};

// Sums of squares, first of what each thread reads of a range, a block for each range; then of a range's threads, a thread for each
// range. Their order is fixed, so the same run gives the same bits.
template <typename T>
struct SquareKernel {
  static constexpr uint32_t kPieces = 128;
  static_assert(kElementsPerBlock == kSquareRange && kThreads == kSquareScratch);
  struct Piece {
    const T* data;
    uint64_t count;
    uint32_t first_block;
  };
  uint32_t pieces = 0, blocks = 0;
  double* scratch = nullptr;  // by block, by thread
  Piece piece[kPieces];

  DSGD_KERNEL void operator()(Block block) const {
    const Piece& p = piece[piece_of(piece, pieces, block.index)];
    const uint64_t begin = uint64_t{block.index - p.first_block} * kElementsPerBlock;
    const uint64_t end = begin + kElementsPerBlock < p.count ? begin + kElementsPerBlock : p.count;
    double sum = 0;
    const auto add = [&sum](T element) {
      const double x = element;
      sum += x * x;
    };
    for_elements<T>(
        block, begin, end, aligned(p.data),
        [&](uint64_t i) {
          const Lane<T> lane = load(p.data + i);
          for (uint32_t k = 0; k < Lane<T>::kCount; ++k) add(lane.element[k]);
        },
        [&](uint64_t i) { add(p.data[i]); });
    scratch[uint64_t{block.index} * kThreads + block.thread] = sum;
  }
};
struct SquareSumKernel {
  uint32_t blocks = 0, ranges = 0;
  const double* scratch = nullptr;
  double* sums = nullptr;

  DSGD_KERNEL void operator()(Block block) const {
    const uint32_t range = block.index * block.threads + block.thread;
    if (range >= ranges) return;
    double sum = 0;
    for (uint32_t t = 0; t < kThreads; ++t) sum += scratch[uint64_t{range} * kThreads + t];
    sums[range] = sum;
  }
};

// From a bucket to the replicas ("unfuse"): the mean, then the optimizer's rule, then copies of the new values, in one pass.
template <typename Stored>
struct UpdateKernel {
  using T = Wide<Stored>;
  static constexpr bool kMaster = !std::is_same_v<T, Stored>;
  static constexpr uint32_t kPieces = 16, kTargets = 4;
  struct Piece {
    const T* sum;
    uint64_t count;
    Stored* target[kTargets];
    T* state[3];
    T* master;  // where half types are updated
    T divisor;
    uint32_t first_block;
    uint8_t targets;
    Action action;
    UpdateRule::Kind kind;
    update::Momentum momentum;
    update::Decay adam_decay;
    bool sgd_decay, nesterov, amsgrad;
    update::SgdCoefficients<T> sgd;
    update::AdamCoefficients<T> adam;
  };
  uint32_t pieces = 0, blocks = 0;
  Piece piece[kPieces];

  DSGD_KERNEL void operator()(Block block) const {
    const Piece& p = piece[piece_of(piece, pieces, block.index)];
    if (p.action != Action::kUpdate || p.kind == UpdateRule::Kind::kKeep) return run<NoState>(p, block);
    if (p.kind == UpdateRule::Kind::kSgd) return p.sgd_decay ? run_sgd<true>(p, block) : run_sgd<false>(p, block);
    p.amsgrad ? run_adam<true>(p, block) : run_adam<false>(p, block);
  }

 private:
  // What an update does with the state at one element; `state` is in registers.
  struct NoState {
    static constexpr uint32_t kStates = 0;
    DSGD_KERNEL static T step(const Piece& p, T mean, T value, T*) {
      return p.action == Action::kUpdate ? value : mean;  // a rule that keeps the value, or none
    }
  };
  template <bool kDecay, update::Momentum kMomentum, bool kNesterov>
  struct Sgd {
    static constexpr uint32_t kStates = kMomentum == update::Momentum::kNone ? 0 : 1;
    DSGD_KERNEL static T step(const Piece& p, T mean, T value, T* state) {
      T buffer = 0;
      const T result = update::sgd<kDecay, kMomentum, kNesterov>(p.sgd, mean, value, kStates ? state[0] : T{0}, &buffer);
      if (kStates) state[0] = buffer;
      return result;
    }
  };
  template <update::Decay kDecay, bool kAmsGrad>
  struct Adam {
    static constexpr uint32_t kStates = kAmsGrad ? 3 : 2;
    DSGD_KERNEL static T step(const Piece& p, T mean, T value, T* state) {
      T unused = 0;
      return update::adam<kDecay, kAmsGrad>(p.adam, mean, value, &state[0], &state[1], kAmsGrad ? &state[2] : &unused);
    }
  };

  template <bool kDecay>
  DSGD_KERNEL static void run_sgd(const Piece& p, Block block) {
    using update::Momentum;
    if (p.momentum == Momentum::kNone) return run<Sgd<kDecay, Momentum::kNone, false>>(p, block);
    if (p.momentum == Momentum::kFirst) {
      return p.nesterov ? run<Sgd<kDecay, Momentum::kFirst, true>>(p, block) : run<Sgd<kDecay, Momentum::kFirst, false>>(p, block);
    }
    p.nesterov ? run<Sgd<kDecay, Momentum::kRunning, true>>(p, block) : run<Sgd<kDecay, Momentum::kRunning, false>>(p, block);
  }
  template <bool kAmsGrad>
  DSGD_KERNEL static void run_adam(const Piece& p, Block block) {
    using update::Decay;
    switch (p.adam_decay) {
      case Decay::kNone: return run<Adam<Decay::kNone, kAmsGrad>>(p, block);
      case Decay::kCoupled: return run<Adam<Decay::kCoupled, kAmsGrad>>(p, block);
      case Decay::kDecoupled: return run<Adam<Decay::kDecoupled, kAmsGrad>>(p, block);
    }
  }

  DSGD_KERNEL static T value_of(Stored value, T master) {
    if constexpr (kMaster) {
      return followed<Stored>(master, widen(value));
    } else {
      return value;
    }
  }

  template <typename Update>
  DSGD_KERNEL static void run(const Piece& p, Block block) {
    constexpr uint32_t kStates = Update::kStates;
    const uint64_t begin = uint64_t{block.index - p.first_block} * kElementsPerBlock;
    const uint64_t end = begin + kElementsPerBlock < p.count ? begin + kElementsPerBlock : p.count;
    const bool divides = p.action != Action::kCopy;
    const bool reads_value = p.action == Action::kUpdate;
    const bool has_master = kMaster && reads_value;
    bool in_lanes = aligned(p.sum) && (!has_master || aligned(p.master));
    for (uint32_t t = 0; t < p.targets; ++t) in_lanes = in_lanes && aligned(p.target[t]);
    for (uint32_t s = 0; s < kStates; ++s) in_lanes = in_lanes && aligned(p.state[s]);
    for_elements<T>(
        block, begin, end, in_lanes,
        [&](uint64_t i) {
          Lane<T> result = load(p.sum + i), master{}, state[kStates ? kStates : 1];
          Lane<Stored> value{};
          if (reads_value) value = load(p.target[0] + i);
          if (has_master) master = load(p.master + i);
          for (uint32_t s = 0; s < kStates; ++s) state[s] = load(p.state[s] + i);
          for (uint32_t k = 0; k < Lane<T>::kCount; ++k) {
            T own[kStates ? kStates : 1] = {};
            for (uint32_t s = 0; s < kStates; ++s) own[s] = state[s].element[k];
            const T mean = divides ? result.element[k] / p.divisor : result.element[k];
            result.element[k] = Update::step(p, mean, value_of(value.element[k], master.element[k]), own);
            value.element[k] = narrow<Stored>(result.element[k]);
            for (uint32_t s = 0; s < kStates; ++s) state[s].element[k] = own[s];
          }
          for (uint32_t s = 0; s < kStates; ++s) store(p.state[s] + i, state[s]);
          if (has_master) store(p.master + i, result);
          for (uint32_t t = 0; t < p.targets; ++t) store(p.target[t] + i, value);
        },
        [&](uint64_t i) {
          T own[kStates ? kStates : 1] = {};
          for (uint32_t s = 0; s < kStates; ++s) own[s] = p.state[s][i];
          const T mean = divides ? p.sum[i] / p.divisor : p.sum[i];
          const T value = reads_value ? value_of(p.target[0][i], has_master ? p.master[i] : T{0}) : T{0};
          const T result = Update::step(p, mean, value, own);
          for (uint32_t s = 0; s < kStates; ++s) p.state[s][i] = own[s];
          if (has_master) p.master[i] = result;
          for (uint32_t t = 0; t < p.targets; ++t) p.target[t][i] = narrow<Stored>(result);
        });
  }
};

}  // namespace dsgd::device::cuda

// Kernels: functions of (block, thread) that touch disjoint elements, so that a GPU may run them in any order
// and a test as loops on the host. Descriptions of what to do travel as the kernel's own parameters, a batch
// of pieces at a time, so that nothing has to be allocated or copied for a launch. Memory is read and written
// 16 bytes at a time where it is aligned, several reads before the first use, so that enough of them are in
// flight; half types are computed with as float32.
//
// Compiled without contraction of products and sums (-fmad=false): the bits are those of the loops over host
// memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "core/base/half.h"
#include "core/device/backend.h"

#if defined(__CUDACC__)
#define DSGD_KERNEL __host__ __device__ __forceinline__
#else
#define DSGD_KERNEL inline
#endif
#if defined(__CUDA_ARCH__)
#define DSGD_UNROLL _Pragma("unroll")
#else
#define DSGD_UNROLL
#endif

namespace dsgd::device::cuda {

inline constexpr uint32_t kThreads = 256;
// Elements that a block handles, for every type: 32 for each thread, and a bucket of 4 MiB still has a block
// for nearly every multiprocessor of a large GPU.
inline constexpr uint32_t kElementsPerBlock = 8192;
inline constexpr uint32_t blocks_of(uint64_t count) {
  return static_cast<uint32_t>((count + kElementsPerBlock - 1) / kElementsPerBlock);
}

// A thread of a block of kThreads. A kernel with several phases is called once per phase; between phases all
// threads of a block synchronize.
struct ThreadIndex {
  uint32_t block, thread, phase;
  double* shared;  // kThreads numbers, of the block; only with several phases
};

// Each kernel exists with large parameters, so that all tensors of a bucket fit one launch, and with small
// ones, which cost less to send. A batch is collected in the large kernel; fits() copies it to the small one
// if it fits. The numbers of pieces, terms and rules are as large as the bytes allow.
enum class ParameterSize { kSmall, kLarge };
// CUDA's limits: of all versions, and since 12.1.
inline constexpr size_t parameter_bytes(ParameterSize size) {
  return size == ParameterSize::kSmall ? 4096 : 32764;
}

// The elements that one thread reads at once: as many of the stored type as fill 16 bytes. A vector of the
// wide type has the same number.
template <typename Stored>
inline constexpr uint32_t kVectorElements = 16 / sizeof(Stored);
template <typename T, uint32_t kCount>
struct Vector {
  T element[kCount];
};

template <typename T>
DSGD_KERNEL bool aligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}
#if !defined(__CUDA_ARCH__)
// A GPU cannot read 16 bytes at another address.
template <typename T>
void check_aligned(const T* data) {
  if (!aligned(data)) std::abort();
}
#endif
template <uint32_t kCount, typename T>
DSGD_KERNEL Vector<T, kCount> load(const T* data) {
  Vector<T, kCount> vector;
#if defined(__CUDA_ARCH__)
  static_assert(sizeof vector % sizeof(uint4) == 0);
  DSGD_UNROLL
  for (uint32_t word = 0; word < sizeof vector / sizeof(uint4); ++word) {
    const uint4 bits = reinterpret_cast<const uint4*>(data)[word];
    std::memcpy(reinterpret_cast<char*>(&vector) + word * sizeof bits, &bits, sizeof bits);
  }
#else
  check_aligned(data);
  std::memcpy(&vector, data, sizeof vector);
#endif
  return vector;
}
template <uint32_t kCount, typename T>
DSGD_KERNEL void store(T* data, const Vector<T, kCount>& vector) {
#if defined(__CUDA_ARCH__)
  DSGD_UNROLL
  for (uint32_t word = 0; word < sizeof vector / sizeof(uint4); ++word) {
    uint4 bits;
    std::memcpy(&bits, reinterpret_cast<const char*>(&vector) + word * sizeof bits, sizeof bits);
    reinterpret_cast<uint4*>(data)[word] = bits;
  }
#else
  check_aligned(data);
  std::memcpy(data, &vector, sizeof vector);
#endif
}

// The elements of a piece that a block takes.
struct Range {
  uint64_t begin, end;
};
template <typename Piece>
DSGD_KERNEL Range range_of(const Piece& piece, ThreadIndex at) {
  const uint64_t begin = uint64_t{at.block - piece.first_block} * kElementsPerBlock;
  return {begin, begin + kElementsPerBlock < piece.count ? begin + kElementsPerBlock : piece.count};
}

// The part of a range that a thread of a block handles: whole vectors, each thread's beside the next one's,
// and several such rows at a time; then, one by one, the elements that fill no vector, or all if something is
// not aligned. `vectors(rows, i)` handles `rows` vectors, an integral constant, at i, i + kRow<kCount> and so
// on.
template <uint32_t kCount>
inline constexpr uint64_t kRow = uint64_t{kThreads} * kCount;
template <uint32_t kCount, uint32_t kRows, typename Vectors, typename Ones>
DSGD_KERNEL void for_elements(ThreadIndex at, Range range, bool vectorized, Vectors vectors, Ones ones) {
  uint64_t rest = range.begin;
  if (vectorized) {
    rest = range.begin + (range.end - range.begin) / kCount * kCount;
    uint64_t i = range.begin + uint64_t{at.thread} * kCount;
    for (; i + (kRows - 1) * kRow<kCount> < rest; i += kRows * kRow<kCount>)
      vectors(std::integral_constant<uint32_t, kRows>(), i);
    for (; i < rest; i += kRow<kCount>) vectors(std::integral_constant<uint32_t, 1>(), i);
  }
  for (uint64_t i = rest + at.thread; i < range.end; i += kThreads) ones(i);
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

// Of many threads, to one record in the device's memory.
DSGD_KERNEL void add_to(NonFinite* record, const NonFinite& part) {
#if defined(__CUDA_ARCH__)
  atomicAdd(reinterpret_cast<unsigned long long*>(&record->count), part.count);
  atomicMin(reinterpret_cast<unsigned long long*>(&record->first), part.first);
#else
  record->add(part, 0);
#endif
}

// bucket = sum of weight * gradient over the replicas of this device, gathered into the bucket's layout
// ("fuse") in one pass.
template <typename Stored>
struct SumParts {
  using T = Wide<Stored>;
  struct Piece {
    T* sum;
    uint64_t count;
    uint32_t first_block;
    uint16_t first_term, terms;
    bool add;  // to the bucket, for pieces with more terms than one launch can take
    uint32_t index;
  };
  struct WeightedTerm {
    const Stored* gradient;
    T weight;
  };
};
// With kChecks, elements of gradients that are not finite count as zero.
template <typename Stored, ParameterSize kSize, bool kChecks>
struct SumKernel : SumParts<Stored> {
  using typename SumParts<Stored>::T;
  using typename SumParts<Stored>::Piece;
  using typename SumParts<Stored>::WeightedTerm;
  using Small = SumKernel<Stored, ParameterSize::kSmall, kChecks>;
  static constexpr size_t kBytes = parameter_bytes(kSize);
  static constexpr uint32_t kPhases = 1, kPieces = kSize == ParameterSize::kSmall ? 48 : 400,
                            kTerms = kSize == ParameterSize::kSmall ? 128 : 1200;
  uint32_t pieces = 0, terms = 0, blocks = 0;
  NonFinite* found = nullptr;  // by Piece::index
  Piece piece[kPieces];
  WeightedTerm term[kTerms];

  bool fits(Small* small) const {
    if (pieces > Small::kPieces || terms > Small::kTerms) return false;
    small->pieces = pieces, small->terms = terms, small->blocks = blocks, small->found = found;
    std::copy_n(piece, pieces, small->piece);
    std::copy_n(term, terms, small->term);
    return true;
  }

  DSGD_KERNEL void operator()(ThreadIndex at) const {
    constexpr uint32_t kCount = kVectorElements<Stored>;
    const Piece& p = piece[piece_of(piece, pieces, at.block)];
    bool vectorized = aligned(p.sum);
    for (uint32_t t = 0; t < p.terms; ++t)
      vectorized = vectorized && aligned(term[p.first_term + t].gradient);
    NonFinite mine;
    const auto finite = [&mine](Stored stored, uint64_t i) {
      const T element = widen(stored);
      if (!kChecks || is_finite(element)) return element;
      ++mine.count;
      if (i < mine.first) mine.first = i;
      return T{0};
    };
    for_elements<kCount, 4>(
        at, range_of(p, at), vectorized,
        [&](auto rows, uint64_t i) {
          constexpr uint32_t kRows = decltype(rows)::value;
          Vector<T, kCount> sum[kRows] = {};
          if (p.add) {
            DSGD_UNROLL
            for (uint32_t row = 0; row < kRows; ++row)
              sum[row] = load<kCount>(p.sum + i + row * kRow<kCount>);
          }
          for (uint32_t t = 0; t < p.terms; ++t) {
            const WeightedTerm& from = term[p.first_term + t];
            Vector<Stored, kCount> gradient[kRows];
            DSGD_UNROLL
            for (uint32_t row = 0; row < kRows; ++row)
              gradient[row] = load<kCount>(from.gradient + i + row * kRow<kCount>);
            DSGD_UNROLL
            for (uint32_t row = 0; row < kRows; ++row) {
              DSGD_UNROLL
              for (uint32_t k = 0; k < kCount; ++k) {
                const T product = from.weight * finite(gradient[row].element[k], i + row * kRow<kCount> + k);
                T& element = sum[row].element[k];
                element = t == 0 && !p.add ? product : element + product;
              }
            }
          }
          DSGD_UNROLL
          for (uint32_t row = 0; row < kRows; ++row) store(p.sum + i + row * kRow<kCount>, sum[row]);
        },
        [&](uint64_t i) {
          T sum = p.add ? p.sum[i] : T{0};
          for (uint32_t t = 0; t < p.terms; ++t) {
            const WeightedTerm& from = term[p.first_term + t];
            const T product = from.weight * finite(from.gradient[i], i);
            sum = t == 0 && !p.add ? product : sum + product;
          }
          p.sum[i] = sum;
        });
    if (kChecks && mine.count > 0) add_to(found + p.index, mine);
  }
};

// Sums of squares, a block for each range: each thread adds up its own elements, then the block adds up the
// threads' sums as a tree. The order is fixed, so the same run gives the same bits.
template <typename T>
struct SquareParts {
  struct Piece {
    const T* data;
    uint64_t count;
    uint32_t first_block;
  };
};
template <typename T, ParameterSize kSize>
struct SquareKernel : SquareParts<T> {
  using typename SquareParts<T>::Piece;
  using Small = SquareKernel<T, ParameterSize::kSmall>;
  static constexpr size_t kBytes = parameter_bytes(kSize);
  static constexpr uint32_t kPhases = 9, kPieces = kSize == ParameterSize::kSmall ? 128 : 1300;
  static_assert(kElementsPerBlock == kSquareRange && kThreads == 1u << (kPhases - 1));
  uint32_t pieces = 0, blocks = 0;
  double* sums = nullptr;  // by block
  Piece piece[kPieces];

  bool fits(Small* small) const {
    if (pieces > Small::kPieces) return false;
    small->pieces = pieces, small->blocks = blocks, small->sums = sums;
    std::copy_n(piece, pieces, small->piece);
    return true;
  }

  DSGD_KERNEL void operator()(ThreadIndex at) const {
    if (at.phase == 0) {
      at.shared[at.thread] = of_thread(at);
      return;
    }
    const uint32_t half = kThreads >> at.phase;
    if (at.thread >= half) return;
    at.shared[at.thread] += at.shared[at.thread + half];
    if (half == 1) sums[at.block] = at.shared[0];
  }

 private:
  DSGD_KERNEL double of_thread(ThreadIndex at) const {
    constexpr uint32_t kCount = kVectorElements<T>;
    const Piece& p = piece[piece_of(piece, pieces, at.block)];
    double sum = 0;
    const auto add = [&sum](T element) {
      const double x = element;
      sum += x * x;
    };
    for_elements<kCount, 4>(
        at, range_of(p, at), aligned(p.data),
        [&](auto rows, uint64_t i) {
          constexpr uint32_t kRows = decltype(rows)::value;
          Vector<T, kCount> vector[kRows];
          DSGD_UNROLL
          for (uint32_t row = 0; row < kRows; ++row)
            vector[row] = load<kCount>(p.data + i + row * kRow<kCount>);
          DSGD_UNROLL
          for (uint32_t row = 0; row < kRows; ++row) {
            DSGD_UNROLL
            for (uint32_t k = 0; k < kCount; ++k) add(vector[row].element[k]);
          }
        },
        [&](uint64_t i) { add(p.data[i]); });
    return sum;
  }
};

// From a bucket to the replicas ("unfuse"): the mean, then the optimizer's rule, then copies of the new
// values, in one pass.
template <typename Stored>
struct UpdateParts {
  using T = Wide<Stored>;
  static constexpr uint32_t kTargets = 4;
  struct Rule {  // of many pieces: an UpdateRule for one type
    UpdateRule::Kind kind;
    update::Momentum momentum;
    update::Decay adam_decay;
    bool sgd_decay, nesterov, amsgrad;
    update::SgdCoefficients<T> sgd;
    update::AdamCoefficients<T> adam;
  };
  struct Piece {
    const T* sum;
    uint64_t count;
    Stored* target[kTargets];
    T* state[3];
    T* master;  // where half types are updated
    T divisor;
    uint32_t first_block;
    uint8_t targets, rule;
    Action action;
  };
};
template <typename Stored, ParameterSize kSize>
struct UpdateKernel : UpdateParts<Stored> {
  using typename UpdateParts<Stored>::T;
  using typename UpdateParts<Stored>::Piece;
  using typename UpdateParts<Stored>::Rule;
  using Small = UpdateKernel<Stored, ParameterSize::kSmall>;
  static constexpr bool kMaster = !std::is_same_v<T, Stored>;
  static constexpr size_t kBytes = parameter_bytes(kSize);
  static constexpr uint32_t kPhases = 1, kPieces = kSize == ParameterSize::kSmall ? 24 : 280,
                            kRules = kSize == ParameterSize::kSmall ? 8 : 24;
  uint32_t pieces = 0, rules = 0, blocks = 0;
  Piece piece[kPieces];
  Rule rule[kRules];

  bool fits(Small* small) const {
    if (pieces > Small::kPieces || rules > Small::kRules) return false;
    small->pieces = pieces, small->rules = rules, small->blocks = blocks;
    std::copy_n(piece, pieces, small->piece);
    std::copy_n(rule, rules, small->rule);
    return true;
  }

  DSGD_KERNEL void operator()(ThreadIndex at) const {
    const Piece& p = piece[piece_of(piece, pieces, at.block)];
    const Rule& r = rule[p.rule];
    if (p.action != Action::kUpdate || r.kind == UpdateRule::Kind::kKeep) return run<NoState>(p, r, at);
    if (r.kind == UpdateRule::Kind::kSgd)
      return r.sgd_decay ? run_sgd<true>(p, r, at) : run_sgd<false>(p, r, at);
    r.amsgrad ? run_adam<true>(p, r, at) : run_adam<false>(p, r, at);
  }

 private:
  // Updates of the state at one element; `state` is in registers.
  struct NoState {
    static constexpr uint32_t kStates = 0;
    DSGD_KERNEL static T step(const Piece& p, const Rule&, T mean, T value, T*) {
      return p.action == Action::kUpdate ? value : mean;  // a rule that keeps the value, or none
    }
  };
  template <bool kDecay, update::Momentum kMomentum, bool kNesterov>
  struct Sgd {
    static constexpr uint32_t kStates = kMomentum == update::Momentum::kNone ? 0 : 1;
    DSGD_KERNEL static T step(const Piece&, const Rule& r, T mean, T value, T* state) {
      T buffer = 0;
      const T result =
          update::sgd<kDecay, kMomentum, kNesterov>(r.sgd, mean, value, kStates ? state[0] : T{0}, &buffer);
      if (kStates) state[0] = buffer;
      return result;
    }
  };
  template <update::Decay kDecay, bool kAmsGrad>
  struct Adam {
    static constexpr uint32_t kStates = kAmsGrad ? 3 : 2;
    DSGD_KERNEL static T step(const Piece&, const Rule& r, T mean, T value, T* state) {
      T unused = 0;
      return update::adam<kDecay, kAmsGrad>(r.adam, mean, value, &state[0], &state[1],
                                            kAmsGrad ? &state[2] : &unused);
    }
  };

  template <bool kDecay>
  DSGD_KERNEL static void run_sgd(const Piece& p, const Rule& r, ThreadIndex at) {
    using update::Momentum;
    if (r.momentum == Momentum::kNone) return run<Sgd<kDecay, Momentum::kNone, false>>(p, r, at);
    if (r.momentum == Momentum::kFirst) {
      return r.nesterov ? run<Sgd<kDecay, Momentum::kFirst, true>>(p, r, at)
                        : run<Sgd<kDecay, Momentum::kFirst, false>>(p, r, at);
    }
    r.nesterov ? run<Sgd<kDecay, Momentum::kRunning, true>>(p, r, at)
               : run<Sgd<kDecay, Momentum::kRunning, false>>(p, r, at);
  }
  template <bool kAmsGrad>
  DSGD_KERNEL static void run_adam(const Piece& p, const Rule& r, ThreadIndex at) {
    using update::Decay;
    switch (r.adam_decay) {
      case Decay::kNone:
        return run<Adam<Decay::kNone, kAmsGrad>>(p, r, at);
      case Decay::kCoupled:
        return run<Adam<Decay::kCoupled, kAmsGrad>>(p, r, at);
      case Decay::kDecoupled:
        return run<Adam<Decay::kDecoupled, kAmsGrad>>(p, r, at);
    }
  }

  DSGD_KERNEL static T value_of(Stored value, T master) {
    if constexpr (kMaster) {
      return current_master<Stored>(master, widen(value));
    } else {
      return value;
    }
  }

  template <typename Update>
  DSGD_KERNEL static void run(const Piece& p, const Rule& r, ThreadIndex at) {
    constexpr uint32_t kCount = kVectorElements<Stored>, kStates = Update::kStates;
    constexpr uint32_t kMost = (kStates ? 2 : 4) / (kMaster ? 2 : 1);  // rows: as many as registers allow
    const bool divides = p.action != Action::kCopy;
    const bool reads_value = p.action == Action::kUpdate;
    const bool has_master = kMaster && reads_value;
    bool vectorized = aligned(p.sum) && (!has_master || aligned(p.master));
    for (uint32_t t = 0; t < p.targets; ++t) vectorized = vectorized && aligned(p.target[t]);
    for (uint32_t s = 0; s != kStates; ++s) vectorized = vectorized && aligned(p.state[s]);
    for_elements<kCount, kMost>(
        at, range_of(p, at), vectorized,
        [&](auto rows, uint64_t first) {
          constexpr uint32_t kRows = decltype(rows)::value;
          Vector<T, kCount> result[kRows], master[kRows] = {}, state[kRows][kStates ? kStates : 1];
          Vector<Stored, kCount> value[kRows] = {};
          DSGD_UNROLL
          for (uint32_t row = 0; row < kRows; ++row) {
            const uint64_t i = first + row * kRow<kCount>;
            result[row] = load<kCount>(p.sum + i);
            if (reads_value) value[row] = load<kCount>(p.target[0] + i);
            if (has_master) master[row] = load<kCount>(p.master + i);
            DSGD_UNROLL
            for (uint32_t s = 0; s != kStates; ++s) state[row][s] = load<kCount>(p.state[s] + i);
          }
          DSGD_UNROLL
          for (uint32_t row = 0; row < kRows; ++row) {
            DSGD_UNROLL
            for (uint32_t k = 0; k < kCount; ++k) {
              T own[kStates ? kStates : 1] = {};
              for (uint32_t s = 0; s != kStates; ++s) own[s] = state[row][s].element[k];
              T& element = result[row].element[k];
              const T mean = divides ? element / p.divisor : element;
              element =
                  Update::step(p, r, mean, value_of(value[row].element[k], master[row].element[k]), own);
              value[row].element[k] = narrow<Stored>(element);
              for (uint32_t s = 0; s != kStates; ++s) state[row][s].element[k] = own[s];
            }
          }
          DSGD_UNROLL
          for (uint32_t row = 0; row < kRows; ++row) {
            const uint64_t i = first + row * kRow<kCount>;
            DSGD_UNROLL
            for (uint32_t s = 0; s != kStates; ++s) store(p.state[s] + i, state[row][s]);
            if (has_master) store(p.master + i, result[row]);
            for (uint32_t t = 0; t < p.targets; ++t) store(p.target[t] + i, value[row]);
          }
        },
        [&](uint64_t i) {
          T own[kStates ? kStates : 1] = {};
          for (uint32_t s = 0; s != kStates; ++s) own[s] = p.state[s][i];
          const T mean = divides ? p.sum[i] / p.divisor : p.sum[i];
          const T value = reads_value ? value_of(p.target[0][i], has_master ? p.master[i] : T{0}) : T{0};
          const T result = Update::step(p, r, mean, value, own);
          for (uint32_t s = 0; s != kStates; ++s) p.state[s][i] = own[s];
          if (has_master) p.master[i] = result;
          for (uint32_t t = 0; t < p.targets; ++t) p.target[t][i] = narrow<Stored>(result);
        });
  }
};

// X(kernel) for each kernel: to instantiate and to load them.
// clang-format off
#define DSGD_KERNELS_OF_SIZE(X, size)                                                    \
  X(SumKernel<float, size, false>) X(SumKernel<double, size, false>)                     \
  X(SumKernel<Float16, size, false>) X(SumKernel<Bfloat16, size, false>)                 \
  X(SumKernel<float, size, true>) X(SumKernel<double, size, true>)                       \
  X(SumKernel<Float16, size, true>) X(SumKernel<Bfloat16, size, true>)                   \
  X(SquareKernel<float, size>) X(SquareKernel<double, size>)                             \
  X(UpdateKernel<float, size>) X(UpdateKernel<double, size>)                             \
  X(UpdateKernel<Float16, size>) X(UpdateKernel<Bfloat16, size>)
// clang-format on
#define DSGD_KERNELS(X) \
  DSGD_KERNELS_OF_SIZE(X, ParameterSize::kSmall) DSGD_KERNELS_OF_SIZE(X, ParameterSize::kLarge)

#define DSGD_CHECK_BYTES(...) static_assert(sizeof(__VA_ARGS__) <= __VA_ARGS__::kBytes);
DSGD_KERNELS(DSGD_CHECK_BYTES)
#undef DSGD_CHECK_BYTES

}  // namespace dsgd::device::cuda

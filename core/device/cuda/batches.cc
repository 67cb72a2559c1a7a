// A batch collects pieces until a kernel's parameters are full, and launches it.
#include "core/device/cuda/batches.h"

#include <algorithm>
#include <type_traits>

#include "core/device/cuda/context.h"
#include "core/device/cuda/launch.h"

namespace dsgd::device::cuda {
namespace {

// With small parameters, if they are enough.
template <typename Kernel>
int32_t launch_batch(const Queue& queue, const Kernel& kernel, Message* message) {
  if (typename Kernel::Small small; kernel.fits(&small)) {
    DSGD_CUDA(queue.device, launch(small, queue.stream));
  } else {
    DSGD_CUDA(queue.device, launch(kernel, queue.stream));
  }
  return 0;
}

template <typename Stored, bool kChecks>
class SumBatch {
 public:
  using T = Wide<Stored>;
  SumBatch(Queue* queue, NonFinite* found, Message* message) : queue_(queue), message_(message) {
    kernel_.found = found;
  }
  // `index`: of the piece's record.
  int32_t add(const SumPiece& piece, uint32_t index, const Term* terms, T* bucket) {
    if (piece.count == 0) return 0;
    uint32_t done = 0;
    do {
      if (kernel_.pieces == Kernel::kPieces || kernel_.terms == Kernel::kTerms) {
        if (const int32_t code = flush()) return code;
      }
      const uint32_t some = std::min(piece.terms - done, Kernel::kTerms - kernel_.terms);
      kernel_.piece[kernel_.pieces++] = {
          bucket + piece.position,     piece.count, kernel_.blocks, static_cast<uint16_t>(kernel_.terms),
          static_cast<uint16_t>(some), done > 0,    index};
      for (uint32_t t = done; t < done + some; ++t) {
        kernel_.term[kernel_.terms++] = {static_cast<const Stored*>(terms[piece.first_term + t].gradient),
                                         static_cast<T>(terms[piece.first_term + t].weight)};
      }
      kernel_.blocks += blocks_of(piece.count);
      done += some;
      // The rest adds to what this launch makes.
      if (done < piece.terms) {
        if (const int32_t code = flush()) return code;
      }
    } while (done < piece.terms);
    return 0;
  }
  int32_t flush() {
    if (kernel_.pieces == 0) return 0;
    const int32_t code = launch_batch(*queue_, kernel_, message_);
    kernel_.pieces = kernel_.terms = kernel_.blocks = 0;
    return code;
  }

 private:
  using Kernel = SumKernel<Stored, ParameterSize::kLarge, kChecks>;
  Queue* const queue_;
  Message* const message_;
  Kernel kernel_;
};

// Is this a piece of the type that a batch is of?
template <typename Stored>
bool is_of(DType dtype) {
  if constexpr (std::is_same_v<Stored, Float16>) return dtype == DType::kFloat16;
  if constexpr (std::is_same_v<Stored, Bfloat16>) return dtype == DType::kBfloat16;
  return !is_half(dtype);
}

template <typename Stored, bool kChecks>
int32_t sum_as(Queue* queue, const SumPiece* pieces, uint32_t count, const Term* terms, void* bucket,
               NonFinite* found, Message* message) {
  SumBatch<Stored, kChecks> batch(queue, found, message);
  for (uint32_t p = 0; p < count; ++p) {
    if (!is_of<Stored>(pieces[p].source)) continue;
    if (const int32_t code = batch.add(pieces[p], p, terms, static_cast<Wide<Stored>*>(bucket))) return code;
  }
  return batch.flush();
}

template <bool kChecks>
int32_t sum_of(Queue* queue, DType dtype, const SumPiece* pieces, uint32_t count, const Term* terms,
               void* bucket, NonFinite* found, Message* message) {
  const auto sum = [&](auto sum_as) { return sum_as(queue, pieces, count, terms, bucket, found, message); };
  if (dtype == DType::kFloat64) return sum(sum_as<double, kChecks>);
  int32_t code = sum(sum_as<float, kChecks>);
  if (code == 0) code = sum(sum_as<Float16, kChecks>);
  if (code == 0) code = sum(sum_as<Bfloat16, kChecks>);
  return code;
}

template <typename T>
int32_t squares_as(Queue* queue, const SquarePiece* pieces, uint32_t count, const T* bucket, double* sums,
                   Message* message) {
  using Kernel = SquareKernel<T, ParameterSize::kLarge>;
  for (uint32_t p = 0; p < count;) {
    Kernel kernel;
    kernel.sums = sums;
    for (; p < count && kernel.pieces < Kernel::kPieces; ++p) {
      if (pieces[p].count == 0) continue;
      kernel.piece[kernel.pieces++] = {bucket + pieces[p].position, pieces[p].count, kernel.blocks};
      kernel.blocks += blocks_of(pieces[p].count);
    }
    if (kernel.blocks == 0) continue;
    if (const int32_t code = launch_batch(*queue, kernel, message)) return code;
    sums += kernel.blocks;
  }
  return 0;
}

template <typename Stored>
class UpdateBatch {
 public:
  using T = Wide<Stored>;
  UpdateBatch(Queue* queue, Message* message) : queue_(queue), message_(message) {}
  // The update, with as many replicas as a piece has room for.
  int32_t add(const UpdatePiece& given, void* const* targets, const T* bucket) {
    if (given.count == 0 || given.targets == 0) return 0;
    return push(given, given.action, bucket + given.position, targets + given.first_target,
                std::min(given.targets, Kernel::kTargets));
  }
  // Updates the replicas beyond that number, after the first ones: copies the first replica's result to them
  // (its master values, for half types). Where the action does not update master values, repeats the action.
  int32_t add_further(const UpdatePiece& given, void* const* targets, const T* bucket) {
    if (given.count == 0) return 0;
    const bool updated = given.action == Action::kUpdate || !Kernel::kMaster;
    const T* result = updated ? result_of(given, targets) : bucket + given.position;
    for (uint32_t done = Kernel::kTargets; done < given.targets; done += Kernel::kTargets) {
      const uint32_t some = std::min(given.targets - done, Kernel::kTargets);
      if (const int32_t code = push(given, updated ? Action::kCopy : given.action, result,
                                    targets + given.first_target + done, some))
        return code;
    }
    return 0;
  }
  int32_t flush() {
    if (kernel_.pieces == 0) return 0;
    const int32_t code = launch_batch(*queue_, kernel_, message_);
    kernel_.pieces = kernel_.rules = kernel_.blocks = 0;
    return code;
  }

 private:
  using Kernel = UpdateKernel<Stored, ParameterSize::kLarge>;

  static const T* result_of(const UpdatePiece& given, void* const* targets) {
    return static_cast<const T*>(Kernel::kMaster ? given.master : targets[given.first_target]);
  }

  int32_t push(const UpdatePiece& given, Action action, const T* sum, void* const* targets, uint32_t count) {
    const bool known = kernel_.rules > 0 && given.rule == *last_;
    if (kernel_.pieces == Kernel::kPieces || (!known && kernel_.rules == Kernel::kRules)) {
      if (const int32_t code = flush()) return code;
    }
    if (!known || kernel_.rules == 0) add_rule(given.rule);
    typename Kernel::Piece& piece = kernel_.piece[kernel_.pieces++];
    piece = {};
    piece.sum = sum;
    piece.count = given.count;
    for (uint32_t t = 0; t < count; ++t) piece.target[t] = static_cast<Stored*>(targets[t]);
    for (int s = 0; s < 3; ++s) piece.state[s] = static_cast<T*>(given.state[s]);
    piece.master = static_cast<T*>(given.master);
    piece.divisor = static_cast<T>(given.divisor);
    piece.first_block = kernel_.blocks;
    piece.targets = static_cast<uint8_t>(count);
    piece.rule = static_cast<uint8_t>(kernel_.rules - 1);
    piece.action = action;
    kernel_.blocks += blocks_of(given.count);
    return 0;
  }

  // Following pieces share the rule as long as theirs is equal.
  void add_rule(const UpdateRule& given) {
    kernel_.rule[kernel_.rules++] = {given.kind,     given.momentum, given.adam_decay,  given.sgd_decay,
                                     given.nesterov, given.amsgrad,  given.as<T>().sgd, given.as<T>().adam};
    last_ = &given;
  }

  Queue* const queue_;
  Message* const message_;
  const UpdateRule* last_ = nullptr;  // the kernel's last rule
  Kernel kernel_;
};

template <typename Stored>
int32_t update_as(Queue* queue, const UpdatePiece* pieces, uint32_t count, void* const* targets,
                  const void* bucket, Message* message) {
  UpdateBatch<Stored> batch(queue, message);
  const auto add_all = [&](auto add) {
    for (uint32_t p = 0; p < count; ++p) {
      if (!is_of<Stored>(pieces[p].target)) continue;
      if (const int32_t code = (batch.*add)(pieces[p], targets, static_cast<const Wide<Stored>*>(bucket)))
        return code;
    }
    return batch.flush();
  };
  if (const int32_t code = add_all(&UpdateBatch<Stored>::add)) return code;
  return add_all(&UpdateBatch<Stored>::add_further);
}

}  // namespace

int32_t sum(Queue* queue, DType dtype, const SumPiece* pieces, uint32_t count, const Term* terms,
            void* bucket, NonFinite* found, Message* message) {
  DSGD_ENTER_CONTEXT(queue->device);
  return (found ? sum_of<true> : sum_of<false>)(queue, dtype, pieces, count, terms, bucket, found, message);
}

int32_t squares(Queue* queue, DType dtype, const SquarePiece* pieces, uint32_t count, const void* bucket,
                double* sums, Message* message) {
  DSGD_ENTER_CONTEXT(queue->device);
  if (dtype == DType::kFloat64)
    return squares_as(queue, pieces, count, static_cast<const double*>(bucket), sums, message);
  return squares_as(queue, pieces, count, static_cast<const float*>(bucket), sums, message);
}

int32_t update(Queue* queue, DType dtype, const UpdatePiece* pieces, uint32_t count, void* const* targets,
               const void* bucket, Message* message) {
  DSGD_ENTER_CONTEXT(queue->device);
  if (dtype == DType::kFloat64) return update_as<double>(queue, pieces, count, targets, bucket, message);
  int32_t code = update_as<float>(queue, pieces, count, targets, bucket, message);
  if (code == 0) code = update_as<Float16>(queue, pieces, count, targets, bucket, message);
  if (code == 0) code = update_as<Bfloat16>(queue, pieces, count, targets, bucket, message);
  return code;
}

}  // namespace dsgd::device::cuda

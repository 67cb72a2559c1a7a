// Numbers of a step's operations within its call, for n buckets b = 0 .. n-1 and N = 2(n + 1):
//
//   0                    the header
//   1                    one more exchange: norms, settings or digests; at most one of them in a step
//   2 + 2b, 3 + 2b       exponents (when reproducible) and data of a bucket
//   2 + 2n               "all enqueued"
//   2 + N .. 2N          the second attempt: buckets and "all enqueued", each N higher than in the first
//   2 + 2N, 3 + 2N       untrained parameters: means, first values
//   4 + 2N               reports about gradients that are not finite
//   5 + 2N               "all copies are made"
//   6 + 2N + b           means from which copies of an owner's state are made
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/mesh/channels.h"
#include "core/optimizer/optimizer.h"

namespace dsgd {

struct StepOperations {
  uint64_t call = 0;
  size_t buckets = 0;

  uint64_t header() const { return operation_number(call, 0); }
  uint64_t further_exchange() const { return operation_number(call, 1); }
  uint64_t exponents(size_t bucket, bool second_attempt) const {
    return operation_number(call, 2 + 2 * bucket_number(bucket, second_attempt));
  }
  uint64_t data(size_t bucket, bool second_attempt) const {
    return operation_number(call, 3 + 2 * bucket_number(bucket, second_attempt));
  }
  uint64_t all_enqueued(bool second_attempt) const { return exponents(buckets, second_attempt); }
  uint64_t untrained(UntrainedSync sync) const {
    return operation_number(call, 2 + 4 * (buckets + 1) + (sync == UntrainedSync::kMean ? 0 : 1));
  }
  uint64_t gradient_reports() const { return operation_number(call, 4 + 4 * (buckets + 1)); }
  uint64_t copies_made() const { return operation_number(call, 5 + 4 * (buckets + 1)); }
  uint64_t copies(size_t bucket) const { return operation_number(call, 6 + 4 * (buckets + 1) + bucket); }

 private:
  size_t bucket_number(size_t bucket, bool second_attempt) const {
    return bucket + (second_attempt ? buckets + 1 : 0);
  }
};

}  // namespace dsgd

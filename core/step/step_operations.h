// Numbers of a step's operations within its call: 0 the header; 1 one more exchange (norms, settings or
// digests, at most one of them in a step); then two per bucket: exponents (when reproducible) and data; then
// one for "all enqueued". A second attempt has the numbers after these, again two per bucket and one for "all
// enqueued". After those of a second attempt come two for untrained parameters: means, then first values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/mesh/mesh.h"
#include "core/optimizer/optimizer.h"

namespace dsgd {

struct StepOperations {
  uint64_t call = 0;
  size_t buckets = 0;

  uint64_t header() const { return operation_number(call, 0); }
  uint64_t further_exchange() const { return operation_number(call, 1); }
  uint64_t exponents(size_t bucket, bool second_attempt) const {
    return operation_number(call, 2 + 2 * place(bucket, second_attempt));
  }
  uint64_t data(size_t bucket, bool second_attempt) const {
    return operation_number(call, 3 + 2 * place(bucket, second_attempt));
  }
  uint64_t all_enqueued(bool second_attempt) const { return exponents(buckets, second_attempt); }
  uint64_t untrained(UntrainedSync sync) const {
    return operation_number(call, 2 + 4 * (buckets + 1) + (sync == UntrainedSync::kMean ? 0 : 1));
  }

 private:
  size_t place(size_t bucket, bool second_attempt) const {
    return bucket + (second_attempt ? buckets + 1 : 0);
  }
};

}  // namespace dsgd

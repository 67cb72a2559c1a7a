// The table's functions that launch kernels. Many pieces share a launch.
#pragma once

#include "core/device/cuda/handles.h"

namespace dsgd::device::cuda {

int32_t sum(Queue* queue, DType dtype, const SumPiece* pieces, uint32_t count, const Term* terms,
            void* bucket, NonFinite* found, Message* message);
int32_t update(Queue* queue, DType dtype, const UpdatePiece* pieces, uint32_t count, void* const* targets,
               const void* bucket, Message* message);
int32_t squares(Queue* queue, DType dtype, const SquarePiece* pieces, uint32_t count, const void* bucket,
                double* sums, Message* message);

}  // namespace dsgd::device::cuda

// NCCL, which is found when the first communicator is wanted.
#pragma once

#include <vector>

#include "core/device/backend.h"
#include "core/device/cuda/nccl_functions.h"

namespace dsgd::device::cuda {

int32_t communicator_load(const char* path, int32_t* version, Message* message);
int32_t communicator_id(CommunicatorId* id, Message* message);

// The ranks of this process in a communicator. What is begun is over when over() says so, and nothing else
// may be begun before. One thread of its own, whose current device they set, since NCCL goes back to what it
// finds. Its end aborts what is not over, unless finalize() is.
class Ranks {
 public:
  Ranks(std::vector<Handle*> devices, int32_t first, int32_t size)
      : devices_(std::move(devices)), comms_(devices_.size(), nullptr), first_(first), size_(size) {}
  ~Ranks();
  Ranks(const Ranks&) = delete;

  int32_t init(const CommunicatorId& id, Message* message);
  int32_t enqueue(Collective collective, DType dtype, void* const* buffers, uint64_t count,
                  Queue* const* queues, Message* message);
  int32_t finalize(Message* message);
  // kWorkerLost: what NCCL says when others have gone.
  int32_t over(bool* over, Message* message);

 private:
  int32_t failed(Message* message, size_t k, const char* call, nccl::Result result) const;
  // `begun`: ranks for which it was called; none if the group did not begin.
  int32_t failed_in_group(Message* message, size_t begun, const char* call, nccl::Result result) const;

  const std::vector<Handle*> devices_;
  std::vector<nccl::Comm> comms_;  // by device
  const int32_t first_, size_;
  bool finalized_ = false;
};

}  // namespace dsgd::device::cuda

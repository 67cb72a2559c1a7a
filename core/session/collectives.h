// The collectives of the host, on all workers and on host memory. `options.fetch`, if set, fills this memory
// first. Buffers are untouched after `done`. A session of one worker has no mesh, and its collectives are
// local.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/collectives/all_reduce.h"
#include "core/session/calls.h"

namespace dsgd {

class Collectives {
 public:
  using Done = Calls::Done;

  // `admit`: called once for each call of the host. Returns OK if the call may begin, else the error with
  // which it ends.
  Collectives(Calls& calls, AlgorithmChoice algorithm, std::function<Status()> admit)
      : calls_(calls), algorithm_(std::move(algorithm)), admit_(std::move(admit)) {}

  void allreduce(std::span<std::byte> data, DType dtype, Reduction reduction, Done done,
                 const CallOptions& options = {});
  void broadcast(std::span<std::byte> data, DType dtype, int32_t root, Done done,
                 const CallOptions& options = {});
  void allgather(std::span<const std::byte> send, std::span<std::byte> receive, std::vector<size_t> counts,
                 DType dtype, Done done, const CallOptions& options = {});
  void reduce_scatter(std::span<const std::byte> send, std::span<std::byte> receive,
                      std::vector<size_t> counts, DType dtype, Reduction reduction, Done done,
                      const CallOptions& options = {});
  void barrier(Done done, const CallOptions& options = {});

 private:
  using SharedCall = std::shared_ptr<Call>;

  void meet(const SharedCall& call, Kind kind, DType dtype, Reduction reduction, std::vector<size_t> counts,
            Done done);
  void allgather_fetched(const SharedCall& call, std::span<const std::byte> send,
                         std::span<std::byte> receive, std::vector<size_t> counts, DType dtype, Done done);
  void reduce_scatter_fetched(const SharedCall& call, std::span<const std::byte> send,
                              std::span<std::byte> receive, std::vector<size_t> counts, DType dtype,
                              Reduction reduction, Done done);
  void allreduce_wide(const SharedCall& call, std::span<std::byte> data, DType dtype, Reduction reduction,
                      Done done);
  void reduce_scatter_wide(const SharedCall& call, std::span<const std::byte> send,
                           std::span<std::byte> receive, std::vector<size_t> counts, DType dtype,
                           Reduction reduction, Done done);
  void reduce_all(const SharedCall& call, std::span<std::byte> data, DType dtype, Reduction reduction,
                  Done done);
  void compare_schedules(const SharedCall& call, DType dtype, Reduction reduction, size_t count, Done done);

  bool has_mesh() const { return calls_.mesh() != nullptr; }
  Operations& operations() const { return calls_.mesh()->operations; }
  const Peers& peers() const { return calls_.mesh()->peers; }
  int32_t rank() const { return has_mesh() ? peers().rank() : 0; }
  int32_t size() const { return has_mesh() ? peers().size() : 1; }

  Calls& calls_;
  const AlgorithmChoice algorithm_;
  const std::function<Status()> admit_;
};

}  // namespace dsgd

// From sums to new values. What an owner computes before the commit (the mean in `simple`, new values and
// state in `ps`) stays in buffers of the step; update() alone changes the model. Owners work on the host;
// what all workers do alike is done by each device for its replicas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/reduce/reproducible.h"
#include "core/step/device_path.h"

namespace dsgd {

class Commit {
 public:
  Commit(StepState& state, DevicePath& devices) : state_(state), devices_(devices) {}
  // Makes the optimizer's state, where it is missing: zeroed, on this worker's devices, or on the host for
  // owners.
  Status make_state();
  size_t state_bytes() const { return state_bytes_; }
  void begin_step();
  // At the owner of [begin, end) of a bucket, in order: its sums are complete.
  void transform(size_t bucket, size_t begin, size_t end);
  // Finds which parameters of a bucket have a mean, and adds the bucket's part of the norm.
  Status measure(size_t bucket);
  double norm_on_host() const;
  // Owners have measured what they transformed; the workers exchange their parts of the norm.
  std::vector<std::byte> norm_part() const;
  Status add_norm_parts(const std::vector<std::vector<std::byte>>& parts);
  // With a loss scale or clipping, once the norm is known. False: it is not finite, and nothing is updated.
  bool take_norm();
  // Enqueues the updates of a bucket on all devices.
  Status update(size_t bucket);
  // All updates are done, or enqueued in the devices' queues.
  void finish();

  // State on the host: of the owner's ranges, or of all where the host has replicas.
  OptimizerState& host_state() { return host_state_; }
  // Tensors of state that a parameter has: the optimizer's, then master values where it is of a half type.
  // All are of wide(dtype).
  size_t states_of(const Parameter& parameter) const;
  // State of updates that all workers do alike goes from the first device to the host and from there to all
  // devices, around a change of strategy. Nothing to do where only the host has replicas, or owners update.
  void copy_state(bool to_devices, transport::Time deadline, std::function<void(const Status&)> done);

 private:
  size_t owned_state_bytes() const;
  double exact_weight(size_t bucket, const Piece& piece) const;
  PieceMean piece_mean(size_t bucket, const Piece& piece, bool from_result) const;
  void mean_of(size_t bucket, const Piece& piece, size_t begin, size_t count, double weight,
               void* mean) const;
  const void* owned_values(size_t bucket, const Piece& piece, size_t begin, size_t count,
                           float* scratch) const;
  void list_updates(size_t bucket, DeviceContext& context);
  OptimizerState& state_of(DeviceContext& context) { return context.is_host() ? host_state_ : context.state; }

  StepState& state_;
  DevicePath& devices_;
  OptimizerState host_state_;
  OptimizerState next_state_;  // what the owner computes until the commit (ps)
  size_t state_bytes_ = 0;
  double squares_ = 0;            // of the mean, as far as the host computes them
  SquareDigits exact_squares_{};  // the same, when reproducible
  double clip_divisor_ = 1;       // of the mean, so that it has the norm that it may have
  std::vector<device::UpdatePiece> update_pieces_;
  std::vector<void*> targets_;
};

}  // namespace dsgd

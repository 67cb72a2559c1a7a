// Turns sums into new values. Before the commit an owner writes its results (the mean in `simple`, new values
// and state in `ps`) into buffers of the step; only update() changes the model. Owners work on the host; each
// device does for its replicas the work that is the same on all workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/reduce/reproducible.h"
#include "core/step/device_path.h"
#include "core/step/optimizer_state.h"
#include "transport/messages.h"

namespace dsgd {

class Commit {
 public:
  Commit(StepState& state, DevicePath& devices, OptimizerStateStore& optimizer_state)
      : state_(state), devices_(devices), optimizer_state_(optimizer_state) {}
  void begin_step();
  // Turns the sums of [begin, end) of a bucket into results, at their owner. Called in order, when the sums
  // are complete.
  void transform(size_t bucket, size_t begin, size_t end);
  // Computes the next state of the copies that this worker keeps. Called when the means of the bucket have
  // come from their owners, and its results have come, too.
  void update_copies(size_t bucket);
  // Records which pieces of a bucket have a mean, and adds their squares to the norm where it is measured.
  // Turns exact sums into means, where no owner has done it.
  Status measure(size_t bucket);
  double norm_on_host() const;
  // Where owners update, each worker has the norm of its own ranges only. norm_part() returns this worker's
  // part, and add_norm_parts() adds up those of all workers.
  std::vector<std::byte> norm_part() const;
  Status add_norm_parts(const std::vector<std::vector<std::byte>>& parts);
  // Applies the norm to loss scale and clipping. Returns false if there is a loss scale and the norm is not
  // finite: nothing is updated then.
  bool apply_norm();
  // Enqueues the updates of a bucket on all devices.
  Status update(size_t bucket);
  // Sets the function that is called with each update of elements and its sums, which are in host memory;
  // null: none. Set it only in jobs whose view may change: there the host has all sums.
  using Noted = std::function<void(const transport::StateParts::Part& update, const std::byte* sums)>;
  void on_update(Noted noted) { noted_ = std::move(noted); }
  // Call it when all updates are done, or enqueued in the devices' queues. Counts them and, where owners
  // update, makes the next state the present one. Returns, by parameter, whether it was updated.
  std::vector<char> finish();

 private:
  void update_owned(size_t bucket, const Piece& piece, size_t begin, size_t count, const PieceMean& mean,
                    std::byte* out, double* norm);
  void update_range(size_t bucket, const Piece& piece, size_t begin, size_t count, const std::byte* mean,
                    std::byte* out);
  double exact_weight(size_t bucket, const Piece& piece) const;
  PieceMean piece_mean(size_t bucket, const Piece& piece, bool from_result) const;
  void mean_of(size_t bucket, const Piece& piece, size_t begin, size_t count, double weight,
               void* mean) const;
  const void* owned_values(size_t bucket, const Piece& piece, size_t begin, size_t count,
                           float* scratch) const;
  void list_updates(size_t bucket, DeviceContext& context);
  void note_update(const Piece& piece, const device::UpdatePiece& update, const std::byte* sums) const;

  StepState& state_;
  DevicePath& devices_;
  OptimizerStateStore& optimizer_state_;
  double squares_ = 0;            // of the mean, as far as the host computes them
  SquareDigits exact_squares_{};  // the same, when reproducible
  double clip_divisor_ = 1;       // of the mean, so that its norm is at most clip_norm
  std::vector<device::UpdatePiece> update_pieces_;
  std::vector<void*> targets_;
  Noted noted_;
};

}  // namespace dsgd

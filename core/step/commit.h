// Turns sums into new values. Before the commit an owner writes its results (the mean in `simple`, new values
// and state in `ps`) into buffers of the step; only update() changes the model. Owners work on the host; each
// device does for its replicas the work that is the same on all workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/reduce/reproducible.h"
#include "core/step/device_path.h"
#include "transport/messages.h"

namespace dsgd {

class Commit {
 public:
  Commit(StepState& state, DevicePath& devices) : state_(state), devices_(devices) {}
  // Makes the optimizer's state, where it is missing: zeroed, on this worker's devices, or on the host for
  // owners.
  Status make_state();
  size_t state_bytes() const { return state_bytes_; }
  void begin_step();
  // Turns the sums of [begin, end) of a bucket into results, at their owner. Called in order, when the sums
  // are complete.
  void transform(size_t bucket, size_t begin, size_t end);
  // Computes the next state of the copies that this worker keeps. Called when the means of the bucket have
  // come from their owners, and its results have come, too.
  void update_copies(size_t bucket);
  // Finds which pieces of a bucket have a mean, and adds the bucket's part of the norm. Turns exact sums into
  // means, where no owner has done so.
  Status measure(size_t bucket);
  double norm_on_host() const;
  // Where owners update, each worker has the norm of its own ranges only. norm_part() returns this worker's
  // part, and add_norm_parts() adds up those of all workers.
  std::vector<std::byte> norm_part() const;
  Status add_norm_parts(const std::vector<std::vector<std::byte>>& parts);
  // Applies the norm to loss scale and clipping. Returns false if there is a loss scale and the norm is not
  // finite: nothing is updated then.
  bool take_norm();
  // Enqueues the updates of a bucket on all devices.
  Status update(size_t bucket);
  // Sets the function that is called with each update of elements on the host, and its sums; null: none.
  using Noted = std::function<void(const transport::StateParts::Part& update, const std::byte* sums)>;
  void on_update(Noted noted) { noted_ = std::move(noted); }
  // Call it when all updates are done, or enqueued in the devices' queues. Counts them and, where owners
  // update, makes the next state the present one. Returns, by parameter, whether it was updated.
  std::vector<char> finish();

  // Another worker has made these numbers of updates, by parameter. This worker's own ranges and copies have
  // the state of the next step already, since none gives out values before; it becomes the present one.
  void advance_state(const std::vector<uint64_t>& updates);
  // Releases the state of other ranges than these [begin, end), by parameter.
  Status keep_only(const std::vector<std::vector<std::pair<uint64_t, uint64_t>>>& ranges);

  // State on the host: of the owner's ranges, or of all where the host has replicas.
  OptimizerState& host_state() { return host_state_; }
  size_t states_of(const Parameter& parameter) const { return state_.model.states_of(parameter); }
  // Where all workers make the same updates: copies the optimizer's state from the first device to
  // host_state() or, `to_devices`, from there to all devices. Does nothing where only the host has replicas
  // or owners update. Copies nothing to the host where it has a replica, whose state host_state() is.
  void copy_state(bool to_devices, transport::Time deadline, std::function<void(const Status&)> done);

 private:
  size_t owned_state_bytes() const;
  size_t replicated_state_bytes() const;
  Result<Memory> untouched_state(size_t nbytes) const;
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
  void list_updates(size_t bucket, DeviceContext& context, const void* sums);
  void note_update(const Piece& piece, const device::UpdatePiece& update, const std::byte* sums) const;
  OptimizerState& state_of(DeviceContext& context) { return context.is_host() ? host_state_ : context.state; }

  StepState& state_;
  DevicePath& devices_;
  OptimizerState host_state_;
  OptimizerState next_state_;  // what the owner computes until the commit (ps)
  size_t state_bytes_ = 0;
  double squares_ = 0;            // of the mean, as far as the host computes them
  SquareDigits exact_squares_{};  // the same, when reproducible
  double clip_divisor_ = 1;       // of the mean, so that its norm is at most clip_norm
  std::vector<device::UpdatePiece> update_pieces_;
  std::vector<void*> targets_;
  Noted noted_;
};

}  // namespace dsgd

// The state that the parts of a step share: the model, the plan with its buffers, and the step in flight. The
// step (step.h) owns it. Each part writes its own buffers and the results of its work, such as the weights
// (header.h), the scale of the sums (half_wire.h) and the numbers of updates (commit.h).
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/collectives/direct.h"
#include "core/device/collective_queue.h"
#include "core/mesh/mesh.h"
#include "core/metrics/trace.h"
#include "core/model/model.h"
#include "core/model/step_result.h"
#include "core/reduce/reproducible.h"
#include "core/step/device_context.h"
#include "core/step/gradient_marks.h"
#include "core/step/step_operations.h"
#include "core/step/teams.h"
#include "core/strategy/plan.h"
#include "transport/payloads.h"

namespace dsgd {

// Action on non-finite gradients.
enum class NonFiniteAction {
  kNothing,  // does not look for them
  kFail,     // fails on all workers
  kSkip,     // ends on all workers without an update
  kZero,     // takes their elements as zero
};

// The values of the key `nonfinite`, in the order of NonFiniteAction.
inline constexpr const char* kNonFiniteActions[] = {"off", "fail", "skip", "zero"};

// The values of the key `wire`.
inline constexpr std::pair<const char*, DType> kWireTypes[] = {
    {"fp32", DType::kFloat32}, {"fp16", DType::kFloat16}, {"bf16", DType::kBfloat16}};

struct StepOptions {
  bool reproducible = false;
  bool gradient_norm = false;  // always with a loss scale
  // A gradient that is absent on some replicas counts as zero there, with its weight.
  bool absent_is_zero = false;
  NonFiniteAction nonfinite = NonFiniteAction::kNothing;
  bool checks_gradients() const { return nonfinite != NonFiniteAction::kNothing; }
  DType wire = DType::kFloat32;  // type in which sums of float32 gradients travel; may be a half type
  bool early_update = false;     // no gradient is absent, and values may be torn if a step fails
  transport::Duration lease{};   // time for the head or a peer to name a lost worker
  metrics::Trace* trace = nullptr;
};

struct StepRequest {
  uint64_t step = 0;
  uint64_t call = 0;            // the step's operations are numbered within it
  std::vector<double> weights;  // by local replica
  bool stop = false;
  // true: the step ends when the new values are in memory; false: when they are enqueued ahead of later work
  // on the host's streams
  bool wait_for_devices = true;
  transport::Time deadline{};
  transport::Duration timeout{};       // from which the deadline comes, again in each view
  std::string limit = "step_timeout";  // the setting that the deadline comes from, with its value
  int64_t previous_view = 1;           // of the step before
  transport::DrawnSamples drawn;       // from data shards, for this step or earlier ones
};

using Memory = std::shared_ptr<void>;
inline std::byte* bytes(const Memory& memory) { return static_cast<std::byte*>(memory.get()); }

struct DeviceBuffers {          // one bucket on a device that is not the host
  Memory sums;                  // on the device; laid out as the bucket
  Memory fetched_sums;          // on the host, of its replicas; null: they are BucketBuffers::data
  std::vector<Memory> fetched;  // on the host, by replica of the device: gradients, when reproducible
  // Where gradients are checked: a NonFinite for each piece. The host writes to none of them, since a copy of
  // a failed step may still be in progress.
  Memory device_non_finite;
  Memory host_non_finite;
  Memory host_zero_counts;  // copied to device_non_finite before each sum
  // After the local sums; after the copies behind them.
  std::unique_ptr<device::DeviceEvent> summed, reached;
  std::unique_ptr<device::DeviceEvent> returned;  // after the copy of the results, for the update
};

struct PieceMean {
  bool present;
  double weight;  // divisor of the sum: the sum of the weights, times `sum_scale` and the loss scale
};

struct BucketBuffers {
  Memory data;                         // contributions and sums: elements of StepState::data_type()
  Memory result;                       // of the dtype, when reproducible
  Memory values;                       // of ranges whose state is kept here, where no replica is on the host
  Memory exponents;                    // of the elements, when reproducible
  Memory halves;                       // of the elements, where they travel as halves
  std::vector<DeviceBuffers> devices;  // by context
  std::vector<PieceMean> means;        // by piece
  // Where others keep copies of an owner's state: the means of this worker's ranges and of those of which it
  // keeps copies, at their positions.
  Memory copied_means;
  std::vector<NonFinite> non_finite;  // by piece, of gradients that the host sums, where they are checked
  // Where the first device computes the norm: sums of squares by range.
  size_t square_ranges = 0;
  Memory device_squares, host_squares;

  struct Progress {
    bool ready = false;          // its gradients are marked
    int fetching = 0;            // devices whose sums are not on the host yet
    bool contributed = false;    // this worker's contribution is complete and may have been sent
    bool reduced = false;        // its sums are complete on this worker
    bool awaits_gather = false;  // reduced between teams; this team's devices have not gathered it yet
    bool returned = false;       // results are on their way to the devices
    transport::Time marked{};    // when its gradients were
    transport::Time sent{};      // when the contribution was complete
    Direct* held = nullptr;      // waits for the header
    std::vector<double> norms;   // sums of squares of the slices that this rank transformed, in order
  } progress;                    // of the step in flight; reset whole when it begins

  std::byte* result_data() const { return bytes(result ? result : data); }
};

// Where the work of a step is done. Chosen once for a plan.
struct StepPath {
  bool host_has_replicas = true;
  bool has_owners = false;        // slices are those of the strategy's owners
  bool narrows = false;           // float32 elements travel as halves (half_wire.h)
  bool transforms = false;        // owners turn sums into means or new values, and give those out
  bool updates_at_owner = false;  // owners keep the optimizer's state and give out new values
  bool keeps_copies = false;      // and other workers keep copies of it
  bool have_mean = false;         // results are means; else sums, which are divided as they are used
  bool measures_norm = false;
  bool clips = false;
  bool norm_comes_first = false;  // the norm must be known before anything changes
  bool by_teams = false;          // teams, of this worker or of others, reduce a part of the gradients
  bool in_team = false;           // this worker's devices are in one
  bool stays_on_device = false;   // sums stay on the devices: the host has nothing to compute or to send
  bool alone_on_device = false;   // and there are no other workers
  bool returns_results = false;   // results come from the host to the devices
  bool returns_early = false;     // and are final as soon as a bucket is in
  // Updates are enqueued behind the team's sums; the host does not wait for these. The header has the
  // weights.
  bool updates_early = false;
  // Devices compute the norm, since the host does not have the sums of all elements.
  bool norms_on_device = false;
};

// Ranges of a bucket that hold trailers, merged where adjacent.
std::vector<Slice> trailers_of(const Bucket& bucket);
// An element of a bucket's sums or results, such as a trailer: float32 or float64.
double read_element(DType dtype, const std::byte* data, size_t position);
void write_element(DType dtype, std::byte* data, size_t position, double value);

struct StepState {
  StepState(Model& of_worker, StepOptions step_options)
      : model(of_worker), options(step_options), marks(of_worker) {}

  Model& model;
  const StepOptions options;
  Mesh* mesh = nullptr;  // null: one worker

  // Known from start.
  std::vector<DeviceContext> contexts;
  // By replica: its context, and its index among the replicas of that context.
  std::vector<std::pair<size_t, size_t>> location_of_replica;
  uint32_t total_replicas = 1;  // of all workers of the view
  Teams teams;
  device::CollectiveQueue* collectives = nullptr;  // of this worker's devices; null: they are in no team

  // The plan.
  StrategySpec strategy;
  std::vector<Bucket> plan;
  std::vector<BucketBuffers> buffers;  // by bucket
  StepPath path;
  size_t buffer_bytes = 0;  // memory that the step holds beside the model
  GradientMarks marks;

  // The step in flight.
  StepRequest request;
  StepResult result;
  StepOperations numbers;    // of the step's operations
  bool header_done = false;  // all workers agree; the group and the weights are known
  double total_weight = 0;
  double sum_scale = 1;                // factor of the contributions beside their weights: a power of two
  uint32_t contributing_replicas = 0;  // with weight > 0
  std::map<int32_t, transport::DrawnSamples> drawn;  // by rank, of the workers that have data shards

  std::string name() const { return "step " + std::to_string(request.step); }  // of the step in flight
  StepPath choose_path() const;
  bool reduces_by_teams(const StrategySpec& strategy) const;
  // Allocates the buffers of the plan. Fails for want of memory.
  Status make_buffers();
  bool all_marked() const;  // on this worker
  int32_t rank() const { return mesh ? mesh->peers.rank() : 0; }
  Status make_bucket_buffers(size_t bucket, const std::vector<Memory>& sums);
  DeviceContext& context_of(uint32_t replica) { return contexts[location_of_replica[replica].first]; }
  const DeviceContext& context_of(uint32_t replica) const {
    return contexts[location_of_replica[replica].first];
  }
  // Of contributions and their sums.
  DType data_type(const Bucket& bucket) const {
    return options.reproducible ? reproducible::sum_type(bucket.dtype, total_replicas) : bucket.dtype;
  }
  std::byte* data_at(size_t bucket, size_t position) const {
    return bytes(buffers[bucket].data) + position * dtype_size(data_type(plan[bucket]));
  }
  std::byte* exponents_at(size_t bucket, size_t position) const {
    return bytes(buffers[bucket].exponents) +
           position * dtype_size(reproducible::exponent_type(plan[bucket].dtype));
  }
  const std::byte* gradient_at(uint32_t replica, const Piece& piece) const {
    return model.bindings[replica][piece.parameter].gradient +
           piece.begin * dtype_size(model.parameters[piece.parameter]->dtype);
  }
  const std::byte* value_at(uint32_t replica, const Piece& piece) const {
    return model.bindings[replica][piece.parameter].value +
           piece.begin * dtype_size(model.parameters[piece.parameter]->dtype);
  }
  double weight_of(uint32_t replica, uint32_t parameter) const {
    return marks.is_absent(replica, parameter) ? 0 : request.weights[replica];
  }
  // Whether these contributing replicas stand for all: then the divisor is the header's exact sum of weights.
  bool takes_all_weights(double contributing) const {
    return contributing == contributing_replicas || (options.absent_is_zero && contributing > 0);
  }
};

}  // namespace dsgd

// One synchronous step, from gradients to new values, as a state machine on the session's loop:
//
//   begin      the header goes out: step, strategy, rate, weights, digest, stop
//   ready      gradients are marked
//   fetch      a bucket with all its gradients is reduced over each device's replicas and comes to the host
//   reduce     buckets travel in index order, a few at a time, by the strategy's algorithm
//   return     a bucket's result goes to the devices, into the memory of their sums
//   commit     the header agrees and every bucket is in: values and optimizer state change, on every device
//
// If workers have closed their sessions before this step, the others find this in the header's exchange, and
// buckets travel among the remaining workers (step_group.cc).
//
// Until the commit nothing of the model has changed, so a step that fails leaves values and state as they
// were. Gradients are read once, when their bucket is reduced locally. With one worker and one device that is
// not the host, sums stay there.
//
// Workers whose devices form a team (teams.h) first reduce a bucket over these devices. If all workers are
// one team and no owner computes for the others, that is all. Else each worker copies its part to the host,
// parts travel, and the devices gather them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/collectives/direct.h"
#include "core/collectives/exchange.h"
#include "core/device/collective_queue.h"
#include "core/device/waiter.h"
#include "core/mesh/mesh.h"
#include "core/metrics/counters.h"
#include "core/metrics/trace.h"
#include "core/model/model.h"
#include "core/model/step_result.h"
#include "core/reduce/exact_sum.h"
#include "core/reduce/reproducible.h"
#include "core/reduce/value_digest.h"
#include "core/step/device_context.h"
#include "core/step/teams.h"
#include "core/strategy/plan.h"

namespace dsgd {

struct StepOptions {
  bool reproducible = false;
  bool gradient_norm = false;  // always with a loss scale
  // A gradient that is absent on some replicas counts as zero there, with its weight.
  bool absent_is_zero = false;
  transport::Duration lease{};  // time for the head or a peer to name a lost worker
  metrics::Trace* trace = nullptr;
};

struct StepRequest {
  uint64_t step = 0;
  uint64_t call = 0;                      // whose operations are this step's
  std::vector<double> weights;            // by local replica
  std::vector<std::vector<char>> absent;  // by replica, by parameter; filled in as gradients are marked
  bool stop = false;
  // true: the step ends when the new values are in memory; false: when they are enqueued ahead of later work
  // on the host's streams
  bool wait_for_devices = true;
  transport::Time deadline{};
  std::string limit = "step_timeout";  // the setting that the deadline comes from, with its value
};

class Step {
 public:
  using Done = std::function<void(const Status&, const StepResult&)>;

  Step(transport::Loop& loop, Model& model, StepOptions options);
  ~Step();
  void use_mesh(Mesh* mesh) { mesh_ = mesh; }  // null: one worker
  // `failed` is called when a device fails in a step, or when the values of replicas differ. It must fail the
  // session, which ends the step.
  void on_device_failure(std::function<void(const Status&)> failed) {
    on_device_failure_ = std::move(failed);
  }
  // Tells which gradients of the step in flight are not marked.
  void name_unmarked(std::function<UnmarkedGradients()> name) { name_unmarked_ = std::move(name); }
  std::string name() const { return "step " + std::to_string(request_.step); }  // of the step in flight
  uint64_t call() const { return request_.call; }
  UnmarkedGradients unmarked() const {
    return running() && name_unmarked_ ? name_unmarked_() : UnmarkedGradients();
  }
  // "parameters 'a', 'b' and 3 more", of the buckets that these operations move; empty if they move none.
  std::string parameters_text(const std::vector<uint64_t>& operations) const;
  // Aborts the step and all waits on devices, since the session has failed.
  void abort(const Status& cause);

  // The devices that replicas are on; known from start.
  void set_contexts(std::vector<DeviceContext> contexts);
  std::vector<DeviceContext>& contexts() { return contexts_; }
  // Known from start, too. `queue`: of this worker's devices; null if they are in no team.
  void set_teams(Teams teams, std::unique_ptr<device::CollectiveQueue> queue);
  // A new plan, at start and after a change of strategy or settings. It fails for want of memory.
  Status set_plan(Plan plan, uint64_t version);
  const std::vector<Bucket>& plan() const { return plan_; }
  const std::vector<std::vector<uint32_t>>& buckets_of() const { return buckets_of_; }  // by parameter
  const StrategySpec& strategy() const { return strategy_; }
  bool has_teams() const { return teams_.any(); }
  // Replicas of all workers together; known from start.
  void set_replicas(uint32_t total) { total_replicas_ = total; }

  void begin(StepRequest request, Done done);
  bool running() const { return static_cast<bool>(done_); }
  // Parameter is marked, ready or absent, on all replicas.
  void parameter_ready(uint32_t parameter);
  void mark_absent(uint32_t replica, uint32_t parameter) {
    if (done_) request_.absent[replica][parameter] = 1;
  }
  void fail(const Status& cause) { fail(cause, cause); }
  // This worker closes its session, and these gradients are not marked: the step fails on all workers.
  void leave(const UnmarkedGradients& unmarked);
  // A device, or a stream of the host's, has failed: the session ends, and with it the step.
  void device_failed(const Status& cause);
  // The loop may end afterwards: devices no longer post to it.
  void close();
  // Digests of the values of replica 0, as divergence.h compares them, kNotRead for memory of the host's;
  // none if the replica is not on the host. Not during a step.
  std::vector<uint64_t> digests_on_host() const;
  // The last step failed on all workers alike, before anything changed, so the workers may try again.
  bool failed_in_agreement() const { return agreed_; }

  // Does optimizer state live with the owners of ranges, rather than on every worker? Not with clipping: the
  // norm is known when all means are, and owners give each out as soon as it is complete.
  bool updates_at_owner() const {
    return mesh_ && strategy_.kind == StrategyKind::kPs && !model_.optimizer->is_none() && !clips();
  }
  // Memory that the step holds beside the model.
  size_t buffer_bytes() const { return buffer_bytes_; }
  const metrics::StepCounters& counters() const { return counters_; }  // any thread

  // On the host: of the owner's ranges, or of all where the host is a place.
  OptimizerState& host_state() { return host_state_; }
  // Tensors of state that a parameter has: the optimizer's, then master values where it is of a half type.
  // All are of wide(dtype).
  size_t states_of(const Parameter& parameter) const {
    const bool master = is_half(parameter.dtype) && !model_.optimizer->is_none();
    return static_cast<size_t>(model_.optimizer->state_count()) + (master ? 1 : 0);
  }
  // State of updates that all workers do alike goes from the first device to the host and from there to all
  // devices, around a change of strategy. Nothing to do where the host is the only place, or owners update.
  void fetch_state(transport::Time deadline, std::function<void(const Status&)> done) {
    copy_state(false, deadline, std::move(done));
  }
  void spread_state(transport::Time deadline, std::function<void(const Status&)> done) {
    copy_state(true, deadline, std::move(done));
  }
  // Calls `then` when what was enqueued in the queues of all places is done, or is not by the deadline.
  void when_reached(transport::Time deadline, std::function<void(const Status&)> then);

 private:
  using Memory = std::shared_ptr<void>;
  static std::byte* bytes(const Memory& memory) { return static_cast<std::byte*>(memory.get()); }
  struct AtDevice {               // one bucket at a device that is not the host
    Memory sums;                  // there; laid out as the bucket
    Memory fetched_sums;          // on the host, of its replicas; null: they are Buffers::data
    std::vector<Memory> fetched;  // on the host, by replica of the place: gradients, when reproducible
    // After the local sums; after the copies behind them.
    std::unique_ptr<device::DeviceEvent> summed, reached;
    std::unique_ptr<device::DeviceEvent> returned;  // after the copy of the results, for the update
  };
  struct PieceMean {
    bool present;
    double weight;  // what makes the sum the mean, when it is divided by it: of weights, times the loss scale
  };
  struct Buffers {
    Memory data;                   // contributions and sums: elements of data_type()
    Memory result;                 // of the dtype, when reproducible
    Memory values;                 // of this owner's pieces, where no replica is on the host
    Memory exponents;              // of the elements, when reproducible
    std::vector<AtDevice> at;      // by place
    std::vector<PieceMean> means;  // by piece
    int pending = 0;               // parameters not yet marked
    int fetching = 0;              // devices that are not there yet
    bool reduced = false;          // its sums are complete on this worker
    bool travelled = false;        // and waits for its turn to be gathered by a team's devices
    bool returned = false;         // results are on their way to the devices
    bool travels = false;          // its contribution is ready, and may have been used
    transport::Time marked{};      // when its gradients were
    transport::Time sent{};        // when it began to travel
    Direct* held = nullptr;        // waits for the header
    std::vector<double> norms;     // sum of squares of what this rank transformed
    // Where the first device computes the norm: sums of squares by range; the last are on the host.
    size_t square_ranges = 0;
    Memory squares_there, squares_here;
  };

  // A K-th of the values is compared in each step, another K-th in the next: a silent divergence is found
  // within K steps for 1/K of a pass over the values.
  static constexpr uint64_t kDigestParts = 64;

  // the group of workers of a step (step_group.cc)
  Status regroup();
  bool members_have_left() const;
  Status check_needless(int32_t rank) const;  // fails if the step needs the departed rank
  void restart_buckets();
  std::vector<Slice> slices_of(const Bucket& bucket) const;

  // devices (step_devices.cc)
  Status fetch_digest_values(uint64_t part);
  Status order_device_queues();

  // header (step_header.cc)
  void send_header();
  std::vector<std::byte> make_header() const;
  Status read_headers(const std::vector<std::vector<std::byte>>& headers);
  uint64_t settings_digest() const;
  void compare_settings();
  uint64_t value_digest() const;
  void on_header(const Status& status, const std::vector<std::vector<std::byte>>& headers);

  // digests of values (step_digest.cc)
  uint64_t digest_part() const { return request_.step % kDigestParts; }  // that this step's header covers
  static std::pair<size_t, size_t> digest_range(const Parameter& parameter, uint64_t part);
  void add_digest(ValueDigest& digest, size_t parameter, uint64_t part) const;
  void compare_values(std::function<void()> agreed);  // of all workers, all of them; else the step fails
  void digest_from(uint64_t part, std::function<void()> digested);
  void all_done();

  // contribution (contribution.cc)
  void fetch(size_t bucket);
  Status enqueue_fetch(size_t bucket, size_t context);
  Status follow_streams(size_t bucket, DeviceContext& context);
  void make_terms(size_t bucket, const DeviceContext& context, bool weighted, uint32_t only);
  Status enqueue_values(size_t bucket, size_t context);
  void fetched(size_t bucket);
  struct Elements {
    DType dtype;
    const std::byte* data;
  };
  Elements gradient_of(size_t bucket, uint32_t replica, const Piece& piece) const;
  void raise_exponents(size_t bucket);
  void write_exact_trailers(size_t bucket);
  void contribute(size_t bucket);
  void add_up(size_t bucket);
  void add_up_exactly(size_t bucket);
  void write_trailers(size_t bucket);
  double replica_weight(uint32_t replica, uint32_t parameter) const;

  // travel
  Task* add(std::unique_ptr<Task> task);  // a part of this step
  void exchange(const transport::BulkHeader& shape, std::vector<std::byte> mine, Exchange::Gathered done);
  void launch();
  void exchange_exponents(size_t bucket);
  void reduce(size_t bucket);
  void bucket_done(size_t bucket, const Status& status);
  void exchange_norms();
  void exchange_exact_squares();
  void finish();

  // teams (step_teams.cc)
  void fetch_together(size_t bucket);
  Status enqueue_trailers(size_t bucket, size_t context);
  void fetch_trailers(size_t bucket, device::Communicator::Work* work);
  void launch_gathers();
  void gather_together(size_t bucket);
  device::Communicator::Work work_on(size_t bucket, device::Collective collective);
  std::vector<device::CollectiveCopy> part_copies(size_t bucket, bool to_devices);
  static std::vector<Slice> trailers_of(const Bucket& bucket);
  void tell_all_enqueued();
  void team_failed(const Status& cause);

  // untrained parameters (step_sync.cc)
  Status make_sync_staging();
  std::vector<uint32_t> due_for(UntrainedSync sync) const;
  void sync_untrained();
  Status copy_untrained_to_host();
  const std::byte* untrained_value(uint32_t replica, uint32_t parameter) const;  // on the host
  void add_up_means();
  void gather_first_values();
  void exchange_untrained();
  Status write_untrained();

  // commit (commit.cc)
  double exact_weight(const Bucket& bucket, const Buffers& buffers, const Piece& piece) const;
  bool takes_all_weights(double contributing) const {
    return contributing == positive_ || (options_.absent_is_zero && contributing > 0);
  }
  PieceMean piece_mean(const Bucket& bucket, const Buffers& buffers, const Piece& piece,
                       bool from_result) const;
  void mean_of(const Bucket& bucket, const Buffers& buffers, const Piece& piece, size_t begin, size_t count,
               double weight, void* mean) const;
  const void* owned_values(size_t bucket, const Piece& piece, size_t begin, size_t count,
                           float* scratch) const;
  void transform(size_t bucket, size_t begin, size_t end);
  void commit();
  Status measure(size_t bucket);
  Status enqueue_squares(size_t bucket);
  double norm_of_devices() const;
  void update_by_norm();
  Status update(size_t bucket);
  Status return_results(size_t bucket);
  void make_updates(size_t bucket, DeviceContext& context);
  void updated();
  void deliver_values();
  Status order_streams_after_update();
  void end_when_reached(bool norm);
  void end();
  void watch();
  void deadline_passed();
  void refuse(const Status& why);
  void fail(const Status& cause, const Status& told);
  void cancel_timers();
  void trace(const char* name, transport::Time begin, transport::Time end, bool failed);
  void trace_step(transport::Time now, bool failed);
  void trace_bucket(size_t bucket, const char* name, transport::Time begin, transport::Time end);
  std::byte* result_of(const Buffers& buffers) const {
    return bytes(buffers.result ? buffers.result : buffers.data);
  }
  // Of contributions and their sums.
  DType data_type(const Bucket& bucket) const {
    return options_.reproducible ? reproducible::sum_type(bucket.dtype, total_replicas_) : bucket.dtype;
  }
  std::byte* data_at(const Bucket& bucket, const Buffers& buffers, size_t position) const {
    return bytes(buffers.data) + position * dtype_size(data_type(bucket));
  }
  static std::byte* exponents_at(const Bucket& bucket, const Buffers& buffers, size_t position) {
    return bytes(buffers.exponents) + position * dtype_size(reproducible::exponent_type(bucket.dtype));
  }
  bool transforms() const { return mesh_ && strategy_.kind != StrategyKind::kAllReduce; }
  // Whether result_of() has the mean before an update. Else it has sums, which are divided as they are used.
  bool have_mean() const { return transforms() || options_.reproducible; }
  bool host_has_replicas() const { return contexts_.front().is_host(); }
  // Whether teams, of this worker or of others, reduce a part of the gradients.
  bool by_teams() const {
    return teams_.any() && (strategy_.kind != StrategyKind::kAllReduce || goes_by_nccl(strategy_.algorithm));
  }
  bool in_team() const { return collective_queue_ && by_teams(); }
  // Whether results come from the host to the devices; and whether they are final as soon as a bucket is in.
  bool returns_results() const { return !stays_on_device() && !in_team(); }
  bool returns_early() const { return returns_results() && (transforms() || !options_.reproducible); }
  // Whether sums stay on the devices: the host has nothing to compute or to send.
  bool stays_on_device() const {
    if (by_teams()) return teams_.everybody() && !transforms();
    return !mesh_ && contexts_.size() == 1 && !host_has_replicas() && !options_.reproducible;
  }
  bool alone_on_device() const { return stays_on_device() && !mesh_; }
  // Whether the devices compute the norm, since the host does not have the sums of all elements.
  bool norms_on_device() const {
    return measures_norm() && !updates_at_owner() && (stays_on_device() || in_team());
  }
  bool clips() const { return model_.optimizer->clip_norm() > 0; }
  bool measures_norm() const { return options_.gradient_norm || clips(); }
  // Whether the norm must be known before anything changes.
  bool norm_comes_first() const { return model_.loss_scale.on() || clips(); }
  int32_t rank() const { return mesh_ ? mesh_->rank() : 0; }
  size_t team_bytes(const Bucket& bucket) const;
  Status make_buffers(size_t bucket);
  Status ensure_state();
  OptimizerState& state_at(DeviceContext& context) { return context.is_host() ? host_state_ : context.state; }
  void copy_state(bool to_devices, transport::Time deadline, std::function<void(const Status&)> done);
  uint64_t header_operation() const;
  uint64_t norms_operation() const;
  uint64_t operation_of(size_t bucket, bool exponents) const {
    return operation_of(bucket, exponents, second_attempt_);
  }
  uint64_t operation_of(size_t bucket, bool exponents, bool second_attempt) const;
  uint64_t sync_operation(UntrainedSync sync) const;

  transport::Loop& loop_;
  Mesh* mesh_ = nullptr;
  std::function<void(const Status&)> on_device_failure_;
  std::function<UnmarkedGradients()> name_unmarked_;
  Model& model_;
  StepOptions options_;
  StrategySpec strategy_;
  uint64_t version_ = 0;
  uint64_t plan_digest_ = 0;
  std::vector<Bucket> plan_;
  std::vector<Buffers> buffers_;
  std::vector<std::vector<uint32_t>> buckets_of_;  // by parameter
  uint32_t total_replicas_ = 1;
  std::vector<DeviceContext> contexts_;
  // By replica: its place, and its index among the replicas there.
  std::vector<std::pair<size_t, size_t>> where_;
  OptimizerState host_state_;
  OptimizerState next_state_;  // what the owner computes until the commit (ps)
  size_t buffer_bytes_ = 0;
  metrics::StepCounters counters_;
  // Values that the header's digest covers, gathered, where replica 0 is not on the host.
  Memory digest_there_, digest_here_;
  std::vector<size_t> digest_offsets_;  // by parameter, bytes
  struct Untrained {
    std::vector<uint32_t> mean_due, first_due;  // parameters that this step synchronises
    std::vector<double> mean_sums;              // of mean_due, one after the other
    std::vector<std::byte> first_values;        // of first_due, one after the other
    // By replica, by parameter: host buffers; null for replicas on the host.
    std::vector<std::vector<Memory>> staging;
  } untrained_;
  std::vector<device::SumPiece> sum_pieces_;  // of the bucket that is being worked on, as the following ones
  std::vector<device::Term> terms_;
  std::vector<device::SquarePiece> square_pieces_;
  std::vector<device::UpdatePiece> update_pieces_;
  std::vector<void*> targets_;
  device::Waiter waiter_;

  // The workers of the last header; null without a mesh, and before the first step.
  std::shared_ptr<const Group> group_;

  // of the step in flight
  StepRequest request_;
  Done done_;
  StepResult result_;
  bool header_done_ = false;
  bool agreed_ = false;  // failed_in_agreement()
  bool settings_differ_ = false, values_differ_ = false;
  std::vector<std::unique_ptr<ValueDigest>> digests_;  // by parameter, while all values are compared
  Status bucket_failure_;                              // came before the header
  bool second_attempt_ = false;  // this step's buckets were restarted, without a worker that had left
  bool launching_ = false;
  transport::Time begun_{}, marked_{}, reduced_at_{};  // beginning; all gradients marked; all buckets reduced
  size_t incomplete_ = 0;                              // buckets whose gradients are not all marked
  size_t next_ = 0;                                    // next bucket to start
  size_t open_ = 0;                                    // buckets started and not in
  size_t reduced_ = 0;                                 // buckets in
  size_t next_gather_ = 0;                             // next bucket that a team gathers
  bool all_enqueued_ = false;                          // and told
  bool norms_done_ = false;
  bool committed_ = false;
  // The previous step changed nothing, so its copies may still be in progress.
  bool previous_step_skipped_ = false;
  double total_weight_ = 0;
  uint32_t positive_ = 0;         // replicas with weight > 0
  double squares_ = 0;            // of the mean, as far as the host computes them
  SquareDigits exact_squares_{};  // the same, when reproducible
  double clip_divisor_ = 1;       // of the mean, so that it has the norm that it may have

  Teams teams_;
  transport::TimerId patience_ = 0;  // of the wait for the name of the lost worker
  transport::TimerId limit_ = 0;     // of a step that waits for the host's gradients, or for devices
  // Ends first: then no device uses any of the above.
  std::unique_ptr<device::CollectiveQueue> collective_queue_;
};

}  // namespace dsgd

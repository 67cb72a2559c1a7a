// One synchronous step, from gradients to new values, as a state machine on the session's loop:
//
//   begin      the header goes out: step, strategy, rate, weights, digest, stop
//   ready      gradients are marked; a bucket whose gradients are all there is reduced over the local replicas
//   reduce     buckets travel in index order, a few at a time, by the strategy's algorithm
//   commit     once the header agrees and every bucket is in: values and optimizer state change, locally
//
// Until the commit nothing of the model has changed, so a step that fails leaves values and state as they were. Gradients
// are read once, when their bucket is reduced locally.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/collectives/direct.h"
#include "core/collectives/mesh.h"
#include "core/session/operation.h"
#include "core/strategy/model.h"
#include "core/strategy/plan.h"

namespace dsgd {

struct StepOptions {
  bool reproducible = false;
  bool gradient_norm = false;
};

struct StepRequest {
  uint64_t step = 0;
  uint64_t call = 0;  // whose operations are this step's
  std::vector<double> weights;       // by local replica
  std::vector<std::vector<char>> absent;  // by replica, by parameter; filled in as gradients are marked
  bool stop = false;
  transport::Time deadline{};
};

class Step {
 public:
  using Done = std::function<void(const Status&, const StepResult&)>;

  Step(Model& model, StepOptions options);
  ~Step();
  void use_mesh(Mesh* mesh) { mesh_ = mesh; }  // null: one worker

  // A new plan, at start and after a change of strategy or settings.
  void set_plan(Plan plan, uint64_t version);
  const std::vector<Bucket>& plan() const { return plan_; }
  const StrategySpec& strategy() const { return strategy_; }
  // Replicas of all workers together, and of the ranks before this one; known from start.
  void set_replicas(uint32_t total) { total_replicas_ = total; }

  void begin(StepRequest request, Done done);
  bool running() const { return static_cast<bool>(done_); }
  // Parameter is marked, ready or absent, on all replicas.
  void parameter_ready(uint32_t parameter);
  void mark_absent(uint32_t replica, uint32_t parameter) { request_.absent[replica][parameter] = 1; }
  void fail(const Status& cause);
  // The last failure was found by all workers alike before anything changed: the next step may be tried.
  bool failed_in_agreement() const { return agreed_; }

  // Does optimizer state live with the owners of ranges, rather than on every worker?
  bool updates_at_owner() const { return mesh_ && strategy_.kind == StrategyKind::kPs && !model_.optimizer->is_none(); }
  size_t buffer_bytes() const;  // memory that the step holds beside the model

 private:
  struct Buffers {
    std::vector<std::byte> data;    // contributions and sums: elements of the dtype, or int64 when reproducible
    std::vector<std::byte> result;  // of the dtype, when reproducible
    std::vector<int32_t> exponents;
    int pending = 0;                // parameters not yet marked
    bool reduced = false;
    Direct* held = nullptr;         // waits for the header
    std::vector<double> norms;      // sum of squares of what this rank transformed
  };
  struct PieceMean {
    bool present;
    double weight;
  };

  // header (step_header.cc)
  std::vector<std::byte> make_header() const;
  Status read_headers(const std::vector<std::vector<std::byte>>& headers);
  uint64_t settings_digest() const;
  uint64_t value_digest() const;
  void on_header(const Status& status, const std::vector<std::vector<std::byte>>& headers);

  // contribution (contribution.cc)
  void contribute(size_t bucket);
  void raise_exponents(size_t bucket);
  double replica_weight(uint32_t replica, uint32_t parameter) const;
  int weight_shift() const;

  // travel
  void launch();
  void exchange_exponents(size_t bucket);
  void reduce(size_t bucket);
  void bucket_done(size_t bucket, const Status& status);
  void exchange_norms();
  void finish();

  // commit (commit.cc)
  PieceMean piece_mean(const Bucket& bucket, const Buffers& buffers, const Piece& piece, bool from_result) const;
  void mean_of(const Bucket& bucket, const Buffers& buffers, const Piece& piece, size_t begin, size_t count,
               double weight, void* mean) const;
  void transform(size_t bucket, size_t begin, size_t end);
  void commit();
  void commit_bucket(size_t bucket, std::vector<char>& updated, std::vector<double>& norms);
  std::byte* result_of(Buffers& buffers) const {
    return buffers.result.empty() ? buffers.data.data() : buffers.result.data();
  }
  size_t data_element(const Bucket& bucket) const { return options_.reproducible ? 8 : dtype_size(bucket.dtype); }
  bool transforms() const { return mesh_ && strategy_.kind != StrategyKind::kAllReduce; }
  void ensure_state();
  uint64_t header_operation() const;
  uint64_t norms_operation() const;
  uint64_t operation_of(size_t bucket, bool exponents) const;

  Mesh* mesh_ = nullptr;
  Model& model_;
  StepOptions options_;
  StrategySpec strategy_;
  uint64_t version_ = 0;
  uint64_t plan_digest_ = 0;
  std::vector<Bucket> plan_;
  std::vector<Buffers> buffers_;
  std::vector<std::vector<uint32_t>> buckets_of_;  // by parameter
  uint32_t total_replicas_ = 1;
  std::vector<std::vector<StateBuffer>> next_state_;  // what the owner computes until the commit (ps)

  // of the step in flight
  StepRequest request_;
  Done done_;
  StepResult result_;
  bool header_done_ = false;
  bool agreed_ = false;
  Status bucket_failure_;  // came before the header
  size_t next_ = 0;     // next bucket to start
  size_t open_ = 0;     // buckets started and not in
  size_t reduced_ = 0;  // buckets in
  bool norms_done_ = false;
  std::vector<double> all_weights_;  // of all replicas of all workers
  double total_weight_ = 0;
  uint32_t positive_ = 0;  // replicas with weight > 0
  double largest_weight_ = 0;
};

}  // namespace dsgd

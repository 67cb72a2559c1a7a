#include "core/step/step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/collectives/all_reduce.h"
#include "core/reduce/kernels.h"
#include "core/reduce/reproducible.h"

namespace dsgd {
namespace {
// After the deadline of a step, for an error that says more: the mesh asks its peers for 50 ms. Constant: a
// call returns within 100 ms after its deadline.
constexpr transport::Duration kGrace = std::chrono::milliseconds(80);
}  // namespace

Step::Step(transport::Loop& loop, Model& model, StepOptions options)
    : loop_(loop), model_(model), options_(options), waiter_(loop) {}
Step::~Step() = default;

void Step::cancel_timers() {
  for (transport::TimerId* timer : {&patience_, &limit_}) {
    if (*timer) loop_.cancel(std::exchange(*timer, 0));
  }
}

void Step::close() {
  cancel_timers();
  waiter_.close();
  if (collective_queue_) collective_queue_->close();
}

Status Step::set_plan(Plan plan, uint64_t version) {
  plan_digest_ = plan.digest();
  plan_ = std::move(plan.buckets);
  strategy_ = std::move(plan.strategy);
  version_ = version;
  buffers_.clear();
  buffers_.resize(plan_.size());
  buffer_bytes_ = 0;
  for (StreamMarks& of_replica : model_.stream_marks) {
    of_replica.marked.assign(model_.parameters.size(), 0);
    of_replica.buckets.clear();
    of_replica.buckets.resize(plan_.size());
  }
  buckets_of_.assign(model_.parameters.size(), {});
  for (size_t b = 0; b < plan_.size(); ++b) {
    if (Status status = make_buffers(b); !status.ok()) return status;
    for (uint32_t parameter : plan_[b].parameters) buckets_of_[parameter].push_back(static_cast<uint32_t>(b));
  }
  if (Status status = make_sync_staging(); !status.ok()) return status;
  return ensure_state();
}

// Operation numbers within the call: 0 the header; 1 one more exchange (norms, settings or digests, at most
// one of them in a step); then two per bucket: exponents (when reproducible) and data; then one for "all
// enqueued". A second attempt has the numbers after these, again two per bucket and one for "all enqueued".
// After those of a second attempt come two for untrained parameters: means, then first values.
uint64_t Step::header_operation() const { return Mesh::operation(request_.call, 0); }
uint64_t Step::norms_operation() const { return Mesh::operation(request_.call, 1); }
uint64_t Step::operation_of(size_t bucket, bool exponents, bool second_attempt) const {
  const size_t place = bucket + (second_attempt ? plan_.size() + 1 : 0);
  return Mesh::operation(request_.call, 2 + 2 * place + (exponents ? 0 : 1));
}

uint64_t Step::sync_operation(UntrainedSync sync) const {
  return Mesh::operation(request_.call, 2 + 4 * (plan_.size() + 1) + (sync == UntrainedSync::kMean ? 0 : 1));
}

void Step::begin(StepRequest request, Done done) {
  request_ = std::move(request);
  done_ = std::move(done);
  result_ = {};
  result_.step = static_cast<int64_t>(request_.step);
  result_.view = mesh_ ? static_cast<int64_t>(mesh_->view().view) : 1;
  result_.size = mesh_ ? mesh_->size() : 1;
  header_done_ = norms_done_ = agreed_ = committed_ = second_attempt_ = false;
  if (mesh_ && !group_) group_ = mesh_->world();
  bucket_failure_ = {};
  clip_divisor_ = 1;
  next_ = open_ = reduced_ = next_gather_ = 0;
  all_enqueued_ = false;
  for (size_t b = 0; b < plan_.size(); ++b) {
    buffers_[b].pending = static_cast<int>(plan_[b].parameters.size());
    buffers_[b].reduced = buffers_[b].travelled = buffers_[b].returned = buffers_[b].travels = false;
    buffers_[b].held = nullptr;
    buffers_[b].norms.clear();
  }
  exact_squares_ = {};
  begun_ = marked_ = loop_.now();
  counters_.buffers.set(buffer_bytes_);
  incomplete_ = plan_.size();
  watch();
  if (Status status = order_device_queues(); !status.ok()) return device_failed(status);
  if (!mesh_) return on_header({}, {make_header()});
  if (contexts_[where_[0].first].is_host()) return send_header();
  if (Status status = fetch_digest_values(digest_part()); !status.ok()) return device_failed(status);
  DeviceContext& context = contexts_[where_[0].first];
  waiter_.after(context.device->name(), *context.queue, *context.reached, request_.deadline,
                [this](const Status& status) { status.ok() ? send_header() : device_failed(status); });
}

Task* Step::add(std::unique_ptr<Task> task) {
  task->rename(name());
  task->set_limit(request_.limit);
  return mesh_->add(std::move(task), request_.deadline);
}

void Step::exchange(const transport::BulkHeader& shape, std::vector<std::byte> mine,
                    Exchange::Gathered done) {
  add(std::make_unique<Exchange>(*mesh_, shape, std::move(mine), std::move(done), group_));
}

void Step::send_header() {
  const auto shape = shape_of(header_operation(), Kind::kHeader, DType::kUint8, Algorithm::kOneHop, 0);
  add(std::make_unique<Exchange>(
      *mesh_, shape, make_header(), [this](const Status& status, const auto& all) { on_header(status, all); },
      mesh_->world(), true));
}

void Step::on_header(const Status& status, const std::vector<std::vector<std::byte>>& headers) {
  if (!done_) return;
  // A mismatch means that some worker made another call, so no worker has all headers: none goes on with this
  // step.
  agreed_ = status.code() == Code::kMismatch;
  if (!status.ok()) {
    if (!agreed_ && members_have_left()) refuse(status);
    return fail(status);
  }
  if (Status gone = regroup(); !gone.ok()) {  // the same on all workers
    agreed_ = true;
    return fail(gone);
  }
  Status agreed = read_headers(headers);
  if (!agreed.ok()) {
    agreed_ = true;
    if (settings_differ_) return compare_settings();
    if (values_differ_) return compare_values([this, agreed] { fail(agreed); });
    return fail(agreed);
  }
  if (!bucket_failure_.ok() && !second_attempt_) return fail(bucket_failure_);
  header_done_ = true;
  if (second_attempt_) restart_buckets();
  for (Buffers& buffers : buffers_) {
    if (Direct* held = std::exchange(buffers.held, nullptr)) held->release();
    if (!done_) return;
  }
  launch();
}

void Step::parameter_ready(uint32_t parameter) {
  if (!done_) return;
  for (uint32_t bucket : buckets_of_[parameter]) {
    if (--buffers_[bucket].pending > 0) continue;
    buffers_[bucket].marked = loop_.now();
    if (--incomplete_ == 0) marked_ = buffers_[bucket].marked;
  }
  launch();
}

// Starts buckets in index order, in whatever order they become ready, so that all workers open the same ones.
void Step::launch() {
  if (options_.reproducible && !header_done_) return;  // weights set the units of the sums
  // A team cannot take back a collective, so all workers must have agreed before.
  if (by_teams() && !header_done_) return;
  if (!header_done_ && members_have_left()) return;  // the header decides which workers remain
  // From a bucket that was done at once: the loop below goes on.
  if (std::exchange(launching_, true)) return;
  while (done_ && next_ < plan_.size() && open_ < Mesh::kOpenTasks && buffers_[next_].pending == 0) {
    ++open_;
    const size_t index = next_++;
    if (in_team()) {
      fetch_together(index);
    } else {
      fetch(index);
    }
  }
  launching_ = false;
  if (!done_) return;
  if (by_teams() && next_ == plan_.size()) tell_all_enqueued();
  launch_gathers();
  finish();
}

// The largest of all workers', element by element.
void Step::exchange_exponents(size_t index) {
  const Bucket& bucket = plan_[index];
  if (!mesh_) return contribute(index);
  const DType dtype = reproducible::exponent_type(bucket.dtype);
  auto shape = shape_of(operation_of(index, true), Kind::kBucket, dtype, Algorithm::kDirect, bucket.elements);
  shape.reduction = static_cast<uint8_t>(Reduction::kMax);
  AllReducePlan all{bucket.elements, dtype, Reduction::kMax, bytes(buffers_[index].exponents), nullptr};
  auto made = make_all_reduce(
      *mesh_, shape, strategy_.algorithm, std::move(all),
      [this, index](const Status& status) {
        if (!done_) return;
        if (!status.ok()) return fail(status);
        contribute(index);
      },
      group_);
  if (!made.ok()) return fail(made.status());
  add(std::move(made).value());
}

void Step::reduce(size_t index) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  if (!mesh_) return bucket_done(index, {});

  buffers.travels = true;
  buffers.sent = loop_.now();
  const DType sum_type = data_type(bucket);
  auto shape =
      shape_of(operation_of(index, false), Kind::kBucket, sum_type, Algorithm::kDirect, bucket.elements);
  auto done = [this, index, attempt = second_attempt_](const Status& status) {
    if (attempt == second_attempt_) bucket_done(index, status);
  };
  std::unique_ptr<Task> task;
  Direct* held = nullptr;
  if (!transforms() && !by_teams()) {
    AllReducePlan all{bucket.elements, sum_type, Reduction::kSum, bytes(buffers.data), nullptr};
    auto made = make_all_reduce(*mesh_, shape, strategy_.algorithm, std::move(all), done, group_);
    if (!made.ok()) return fail(made.status());
    task = std::move(made).value();
  } else {
    DirectPlan direct;
    direct.slices = transforms() ? slices_of(bucket) : teams_.owners(bucket.elements);
    if (by_teams()) direct.parts = teams_.parts(bucket.elements);
    direct.element = dtype_size(sum_type);
    direct.data = bytes(buffers.data);
    direct.ordered = !options_.reproducible;
    direct.add = [sum_type](void* destination, const void* source, size_t count) {
      reduce_into(sum_type, Reduction::kSum, destination, source, count);
    };
    direct.result_element = dtype_size(bucket.dtype);
    direct.result = result_of(buffers);
    if (transforms())
      direct.transform = [this, index](size_t begin, size_t end) { transform(index, begin, end); };
    shape.tag = Direct::tag(*mesh_, direct);
    auto owned = std::make_unique<Direct>(*mesh_, shape, std::move(direct), !header_done_, done, group_);
    if (!header_done_) held = owned.get();
    task = std::move(owned);
  }
  Task* added = add(std::move(task));
  if (added && held && !header_done_) buffers_[index].held = held;
}

void Step::bucket_done(size_t index, const Status& status) {
  if (!done_) return;
  if (!status.ok() && !header_done_) {
    // A peer may have refused the bucket because its headers did not agree; ours will tell the same.
    if (bucket_failure_.ok()) bucket_failure_ = status;
    return;
  }
  if (!status.ok()) return fail(status);
  buffers_[index].held = nullptr;
  buffers_[index].reduced = true;
  const transport::Time now = loop_.now(), marked = buffers_[index].marked;
  const transport::Time sent = buffers_[index].travels ? buffers_[index].sent : now;
  trace_bucket(index, "gradients", begun_, marked);
  trace_bucket(index, "contribution", marked, sent);
  if (buffers_[index].travels) {
    trace_bucket(index, "travel", sent, now);
    counters_.buckets.add(1);
    counters_.travel.add(now - sent);
  }
  --open_;
  if (returns_early()) {
    if (Status enqueued = return_results(index); !enqueued.ok()) return device_failed(enqueued);
  }
  if (in_team() && !stays_on_device()) {
    buffers_[index].travelled = true;
  } else {
    ++reduced_;
  }
  launch();
}

// Each rank sends the digits of the sum of squares of the slices that it transformed.
void Step::exchange_exact_squares() {
  open_ = 1;
  std::vector<std::byte> mine(sizeof exact_squares_);
  std::memcpy(mine.data(), exact_squares_.data(), mine.size());
  const auto shape =
      shape_of(norms_operation(), Kind::kBucket, DType::kInt64, Algorithm::kOneHop, kSquareDigits);
  exchange(shape, std::move(mine), [this](const Status& status, const auto& all) {
    if (!done_) return;
    if (!status.ok()) return fail(status);
    exact_squares_ = {};
    for (const auto& part : all) {
      SquareDigits theirs;
      if (part.size() != sizeof theirs) {
        return fail(
            Status(Code::kInternal, "a worker sent a norm of " + std::to_string(part.size()) + " bytes"));
      }
      std::memcpy(theirs.data(), part.data(), sizeof theirs);
      for (size_t k = 0; k < kSquareDigits; ++k) exact_squares_[k] += theirs[k];
    }
    result_.gradient_norm = std::sqrt(squares_of(exact_squares_));
    open_ = 0;
    finish();
  });
}

void Step::exchange_norms() {
  // Each rank sends one number: the sum of squares of the slices that it transformed.
  norms_done_ = true;
  if (options_.reproducible) return exchange_exact_squares();
  double sum = 0;
  for (const Buffers& buffers : buffers_) {
    for (double part : buffers.norms) sum += part;
  }
  std::vector<std::byte> mine(sizeof sum);
  std::memcpy(mine.data(), &sum, sizeof sum);
  open_ = 1;
  const auto shape = shape_of(norms_operation(), Kind::kBucket, DType::kFloat64, Algorithm::kOneHop, 1);
  exchange(shape, std::move(mine), [this](const Status& status, const auto& all) {
    if (!done_) return;
    if (!status.ok()) return fail(status);
    double total = 0;
    for (const auto& part : all) {
      double theirs;
      if (part.size() != sizeof theirs) {
        return fail(
            Status(Code::kInternal, "a worker sent a norm of " + std::to_string(part.size()) + " bytes"));
      }
      std::memcpy(&theirs, part.data(), sizeof theirs);
      total += theirs;
    }
    result_.gradient_norm = std::sqrt(total);
    open_ = 0;
    finish();
  });
}

void Step::finish() {
  if (!done_ || !header_done_ || reduced_ < plan_.size() || open_ > 0 || committed_) return;
  // Without owners every worker has the whole mean, and no message is needed.
  if (measures_norm() && positive_ > 0 && !norms_done_ && updates_at_owner()) return exchange_norms();
  committed_ = true;
  reduced_at_ = loop_.now();
  commit();
}

void Step::end_when_reached(bool norm) {
  when_reached(request_.deadline, [this, norm](const Status& status) {
    if (!done_) return;
    if (!status.ok()) return device_failed(status);
    if (norm) result_.gradient_norm = norm_of_devices();
    end();
  });
}

void Step::end() {
  cancel_timers();
  if (!result_.applied) previous_step_skipped_ = true;
  if (mesh_) mesh_->end_call(request_.call, {});
  counters_.ended.add(1);
  if (result_.applied) counters_.applied.add(1);
  const transport::Time now = loop_.now();
  counters_.gradients.add(marked_ - begun_);
  counters_.reduction.add(reduced_at_ - marked_);
  counters_.update.add(now - reduced_at_);
  trace_step(now, false);
  Done done = std::move(done_);
  done_ = nullptr;
  done({}, result_);
}

void Step::trace(const char* name, transport::Time begin, transport::Time end, bool failed) {
  if (options_.trace)
    options_.trace->record({metrics::Track::kSteps, failed, 0, 0, name, request_.step, 0, begin, end});
}

// The phases that the step has reached; one that has failed ends now.
void Step::trace_step(transport::Time now, bool failed) {
  const bool marked = incomplete_ == 0;
  trace("gradients", begun_, marked ? marked_ : now, !marked);
  if (marked) trace("reduction", marked_, committed_ ? reduced_at_ : now, !committed_);
  if (committed_) trace("update", reduced_at_, now, failed);
  trace("step", begun_, now, failed);
}

void Step::trace_bucket(size_t index, const char* name, transport::Time begin, transport::Time end) {
  if (!options_.trace) return;
  const size_t nbytes = plan_[index].elements * dtype_size(plan_[index].dtype);
  options_.trace->record({metrics::Track::kBucket, false, 0, static_cast<uint32_t>(index), name,
                          request_.step, nbytes, begin, end});
}

// The other workers do not know of the failure, and this worker's values may be wrong: the session fails.
void Step::device_failed(const Status& cause) {
  if (!done_) return;
  const Status why = Status(cause.code(), name() + ": " + cause.message())
                         .with_operation(name())
                         .with_parameter(cause.parameter());
  on_device_failure_ ? on_device_failure_(why) : fail(why);
}

// Exchanges have deadlines of their own, but none begins for a bucket whose gradients are not all marked.
// Devices report their own deadline within the grace.
void Step::watch() {
  limit_ = loop_.schedule(request_.deadline + (mesh_ ? transport::Duration() : kGrace), [this] {
    limit_ = 0;
    deadline_passed();
  });
}

void Step::deadline_passed() {
  const bool waits_for_host = std::any_of(buffers_.begin(), buffers_.end(),
                                          [](const Buffers& buffers) { return buffers.pending > 0; });
  if (mesh_ && !(waits_for_host && header_done_)) return;  // an exchange is late; its error names the workers
  const UnmarkedGradients unmarked =
      waits_for_host && name_unmarked_ ? name_unmarked_() : UnmarkedGradients();
  const std::string who = mesh_ ? mesh_->member_name(mesh_->rank()) + ": " : "";
  const Status why =
      Status(Code::kTimeout,
             name() + " has not ended within " + request_.limit +
                 (unmarked.empty() ? "" : ": " + who + unmarked.text + UnmarkedGradients::kRemedy))
          .with_rank(rank())
          .with_operation(name())
          .with_parameter(unmarked.parameter);
  refuse(why);
  fail(why);
}

void Step::leave(const UnmarkedGradients& unmarked) {
  if (!done_) return;
  const std::string who = mesh_ ? mesh_->member_name(rank()) : "rank " + std::to_string(rank());
  const std::string text =
      who + " closed its session during " + name() + "; " + unmarked.text + UnmarkedGradients::kRemedy;
  const auto why = [&](Code code) {
    const std::string host = mesh_ ? mesh_->view().members[static_cast<size_t>(rank())].host : "";
    return Status(code, text)
        .with_rank(rank(), host)
        .with_operation(name())
        .with_parameter(unmarked.parameter);
  };
  refuse(why(Code::kWorkerLost));
  fail(why(Code::kClosed), why(Code::kWorkerLost));
}

// This worker will not end what it has begun of the step, nor begin the next bucket. Peers that stand before
// these fail when they reach them.
void Step::refuse(const Status& why) {
  if (!mesh_) return;
  if (!header_done_) mesh_->refuse(header_operation(), why);
  for (size_t b = 0; b < plan_.size() && b <= next_; ++b) {
    if (buffers_[b].reduced) continue;
    for (const bool second : {false, true}) {
      // Nobody will make it.
      if (second != second_attempt_ && (header_done_ || !members_have_left())) continue;
      if (options_.reproducible) mesh_->refuse(operation_of(b, true, second), why);
      mesh_->refuse(operation_of(b, false, second), why);
    }
  }
  if (by_teams()) mesh_->refuse(operation_of(plan_.size(), true), why);
}

std::string Step::parameters_text(const std::vector<uint64_t>& operations) const {
  constexpr size_t kNamed = 3;
  std::vector<uint32_t> parameters;
  for (size_t bucket = 0; bucket < plan_.size(); ++bucket) {
    const bool concerned = std::any_of(operations.begin(), operations.end(), [&](uint64_t operation) {
      return operation == operation_of(bucket, true) || operation == operation_of(bucket, false);
    });
    if (concerned)
      parameters.insert(parameters.end(), plan_[bucket].parameters.begin(), plan_[bucket].parameters.end());
  }
  std::sort(parameters.begin(), parameters.end());
  parameters.erase(std::unique(parameters.begin(), parameters.end()), parameters.end());
  if (parameters.empty()) return {};
  std::string text = parameters.size() == 1 ? "parameter " : "parameters ";
  for (size_t i = 0; i < std::min(parameters.size(), kNamed); ++i) {
    text += (i ? ", '" : "'") + model_.parameters[parameters[i]]->name + "'";
  }
  return text +
         (parameters.size() > kNamed ? " and " + std::to_string(parameters.size() - kNamed) + " more" : "");
}

void Step::abort(const Status& cause) {
  fail(cause);
  if (collective_queue_) collective_queue_->fail(cause);
}

// `told`: what peers hear that still send something for this step.
void Step::fail(const Status& cause, const Status& told) {
  cancel_timers();
  if (done_) {
    previous_step_skipped_ = true;
    counters_.ended.add(1);
    counters_.failed.add(1);
    trace_step(loop_.now(), true);
    // A failure that all have agreed on came before any of the team's work.
    if (collective_queue_ && !agreed_) collective_queue_->fail(cause);
    Done done = std::move(done_);
    done_ = nullptr;
    for (Buffers& buffers : buffers_) buffers.held = nullptr;
    if (mesh_) mesh_->end_call(request_.call, told);
    done(cause, result_);
  }
  waiter_.fail(cause);
}

}  // namespace dsgd

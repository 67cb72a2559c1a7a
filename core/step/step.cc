#include "core/step/step.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "core/base/join.h"
#include "core/base/text.h"
#include "core/collectives/all_reduce.h"
#include "core/reduce/kernels.h"
#include "core/reduce/reproducible.h"
#include "core/step/divergence.h"
#include "transport/schema/codec.h"

namespace dsgd {

Step::Step(transport::Loop& loop, Model& model, StepOptions options)
    : loop_(loop),
      state_(model, options),
      waiter_(loop),
      host_(state_),
      devices_(state_, waiter_),
      commit_(state_, devices_),
      untrained_(state_),
      values_(state_, loop, waiter_),
      group_(state_),
      team_(state_, host_, devices_) {}
Step::~Step() = default;

// ---- the plan

void Step::set_contexts(std::vector<DeviceContext> contexts) {
  state_.contexts = std::move(contexts);
  state_.where.resize(state_.model.replicas.size());
  for (size_t p = 0; p < state_.contexts.size(); ++p) {
    const std::vector<uint32_t>& replicas = state_.contexts[p].replicas;
    for (size_t k = 0; k < replicas.size(); ++k) state_.where[replicas[k]] = {p, k};
  }
}

void Step::set_teams(Teams teams, std::unique_ptr<device::CollectiveQueue> queue) {
  state_.teams = std::move(teams);
  team_.use(std::move(queue));
}

Status Step::set_plan(Plan plan, uint64_t version) {
  plan_digest_ = plan.digest();
  version_ = version;
  state_.plan = std::move(plan.buckets);
  state_.strategy = std::move(plan.strategy);
  state_.path = state_.choose_path();
  state_.buffers.clear();
  state_.buffers.resize(state_.plan.size());
  state_.buffer_bytes = 0;
  if (Status status = state_.marks.set_plan(state_.plan); !status.ok()) return status;
  for (size_t b = 0; b < state_.plan.size(); ++b) {
    if (Status status = state_.make_buffers(b); !status.ok()) return status;
  }
  if (Status status = untrained_.make_buffers(); !status.ok()) return status;
  if (Status status = commit_.make_state(); !status.ok()) return status;
  counters_.state.set(commit_.state_bytes());
  return values_.make_buffers();
}

// ---- the header

void Step::begin(StepRequest request, Done done) {
  state_.request = std::move(request);
  done_ = std::move(done);
  state_.result = {};
  state_.result.step = static_cast<int64_t>(state_.request.step);
  state_.result.view = state_.mesh ? static_cast<int64_t>(state_.mesh->members().view().view) : 1;
  state_.result.size = state_.mesh ? state_.mesh->peers.size() : 1;
  operations_ = {state_.request.call, state_.plan.size()};
  header_done_ = norms_done_ = agreed_ = committed_ = second_attempt_ = all_enqueued_ = false;
  group_.begin_step();
  commit_.begin_step();
  bucket_failure_ = {};
  next_ = open_ = reduced_ = next_gather_ = 0;
  for (BucketBuffers& buffers : state_.buffers) {
    buffers.ready = buffers.reduced = buffers.travelled = buffers.returned = buffers.travels = false;
    buffers.held = nullptr;
    buffers.norms.clear();
  }
  begun_ = marked_ = loop_.now();
  counters_.buffers.set(state_.buffer_bytes);
  watch();
  if (Status status = devices_.begin_step(); !status.ok()) return device_failed(status);
  if (!state_.mesh) return on_header({}, {make_header(state_, {version_, plan_digest_, 0})});
  values_.fetch(ValueComparison::part_of(state_.request.step), state_.request.deadline,
                or_device_failure([this] { send_header(); }));
}

void Step::send_header() {
  const uint64_t digest = values_.digest(ValueComparison::part_of(state_.request.step));
  add(std::make_unique<Exchange>(
      state_.mesh->operations,
      shape_of(operations_.header(), Kind::kHeader, DType::kUint8, Algorithm::kOneHop, 0),
      make_header(state_, {version_, plan_digest_, digest}),
      [this](const Status& status, const auto& all) { on_header(status, all); },
      state_.mesh->members().world(), true));
}

void Step::on_header(const Status& status, const std::vector<std::vector<std::byte>>& headers) {
  if (!done_) return;
  // A mismatch means that some worker made another call, so no worker has all headers: none goes on with this
  // step.
  agreed_ = status.code() == Code::kMismatch;
  if (!status.ok()) {
    if (!agreed_ && group_.members_have_left()) refuse(status);
    return fail(status);
  }
  const Result<bool> changed = group_.regroup(operations_.header());
  if (!changed.ok()) {  // the same on all workers
    agreed_ = true;
    return fail(changed.status());
  }
  second_attempt_ = changed.value();
  const HeaderVerdict verdict = read_headers(&state_, group_.workers().get(), headers);
  if (!verdict.status.ok()) {
    agreed_ = true;
    if (verdict.difference == HeaderVerdict::Difference::kSettings) return compare_settings();
    if (verdict.difference == HeaderVerdict::Difference::kValues)
      return compare_values([this, why = verdict.status] { fail(why); });
    return fail(verdict.status);
  }
  if (!bucket_failure_.ok() && !second_attempt_) return fail(bucket_failure_);
  header_done_ = true;
  if (second_attempt_) restart_buckets();
  for (BucketBuffers& buffers : state_.buffers) {
    if (Direct* held = std::exchange(buffers.held, nullptr)) held->release();
    if (!done_) return;
  }
  launch();
}

void Step::restart_buckets() {
  bucket_failure_ = {};
  for (BucketBuffers& buffers : state_.buffers) buffers.held = nullptr;
  state_.mesh->operations.drop(operations_.exponents(0, false), operations_.exponents(0, true));
  const size_t begun = next_;  // fetch() may start further buckets
  for (size_t b = 0; b < begun && done_; ++b) {
    // A bucket that is still being fetched goes on.
    if (std::exchange(state_.buffers[b].travels, false)) fetch(b);
  }
}

void Step::compare_settings() {
  exchange(operations_.further_exchange(), Kind::kHeader, DType::kUint8, 0,
           bytes_of(settings_text(state_.model)),
           [this](const auto& all) { fail(settings_difference(name(), *group_.workers(), all)); });
}

void Step::compare_values(std::function<void()> agreed) {
  values_.digest_all(state_.request.deadline, [this, agreed = std::move(agreed)](const Status& status,
                                                                                 std::vector<uint64_t> mine) {
    if (!done_) return;
    if (!status.ok()) return device_failed(status);
    exchange(operations_.further_exchange(), Kind::kHeader, DType::kUint8, 0,
             transport::encode(transport::ValueDigests{std::move(mine)}), [this, agreed](const auto& all) {
               std::map<int32_t, std::vector<uint64_t>> digests;
               for (size_t place = 0; place < all.size(); ++place) {
                 const int32_t rank = group_.workers()->ranks[place];
                 auto theirs = transport::decode_value_digests(all[place]);
                 if (!theirs.ok()) {
                   return fail(Status(Code::kInternal, name() + ": the value digests of rank " +
                                                           std::to_string(rank) +
                                                           " are invalid: " + theirs.status().message() +
                                                           "; all workers must run the same version of dsgd")
                                   .with_rank(rank)
                                   .with_operation(name()));
                 }
                 digests[rank] = std::move(theirs).value().digests;
               }
               const Status same = find_divergence(state_.model, digests, name());
               same.ok() ? agreed() : fail(same);
             });
  });
}

// ---- buckets

void Step::buckets_ready(const std::vector<uint32_t>& buckets) {
  if (!done_ || buckets.empty()) return;
  marked_ = loop_.now();
  for (uint32_t bucket : buckets) {
    state_.buffers[bucket].ready = true;
    state_.buffers[bucket].marked = marked_;
  }
  launch();
}

// Starts buckets in index order, in whatever order they become ready, so that all workers open the same ones.
void Step::launch() {
  if (state_.options.reproducible && !header_done_) return;  // weights set the units of the sums
  // A team cannot take back a collective, so all workers must have agreed before.
  if (state_.path.by_teams && !header_done_) return;
  if (!header_done_ && group_.members_have_left()) return;  // the header decides which workers remain
  // From a bucket that was done at once: the loop below goes on.
  if (std::exchange(launching_, true)) return;
  while (done_ && next_ < state_.plan.size() && open_ < kOpenTasks && state_.buffers[next_].ready) {
    ++open_;
    const size_t index = next_++;
    const auto begin = [this, index] { state_.path.in_team ? reduce_in_team(index) : fetch(index); };
    state_.contexts.back().is_host() ? begin() : devices_.follow_streams(index, or_device_failure(begin));
  }
  launching_ = false;
  if (!done_) return;
  if (state_.path.by_teams && next_ == state_.plan.size()) tell_all_enqueued();
  launch_gathers();
  finish();
}

void Step::fetch(size_t index) {
  for (size_t p = 0; p < state_.contexts.size(); ++p) {
    if (state_.contexts[p].is_host()) continue;
    if (Status status = devices_.fetch(index, p); !status.ok()) return device_failed(status);
  }
  if (state_.path.stays_on_device) return contribute(index);
  devices_.when_fetched(
      index,
      [this, index] {
        if (done_) fetched(index);
      },
      [this](const Status& status) { device_failed(status); });
}

void Step::fetched(size_t index) {
  if (!state_.options.reproducible) return contribute(index);
  host_.raise_exponents(index);
  exchange_exponents(index);
}

// The largest of all workers', element by element.
void Step::exchange_exponents(size_t index) {
  const Bucket& bucket = state_.plan[index];
  if (!state_.mesh) return contribute(index);
  const DType dtype = reproducible::exponent_type(bucket.dtype);
  auto shape =
      shape_of(exponents_operation(index), Kind::kBucket, dtype, Algorithm::kDirect, bucket.elements);
  shape.reduction = static_cast<uint8_t>(Reduction::kMax);
  AllReducePlan all{bucket.elements, dtype, Reduction::kMax, state_.exponents_at(index, 0), nullptr};
  auto made = make_all_reduce(state_.mesh->operations, shape, state_.strategy.algorithm, std::move(all),
                              or_fail([this, index] { contribute(index); }), group_.workers());
  if (!made.ok()) return fail(made.status());
  add(std::move(made).value());
}

void Step::contribute(size_t index) {
  if (!state_.path.stays_on_device) host_.add_up(index);
  host_.write_trailers(index);
  reduce(index);
}

void Step::reduce(size_t index) {
  if (!state_.mesh) return bucket_done(index, {});
  BucketBuffers& buffers = state_.buffers[index];
  buffers.travels = true;
  buffers.sent = loop_.now();
  Direct* held = nullptr;
  auto made = make_reduction(index, &held);
  if (!made.ok()) return fail(made.status());
  Task* added = add(std::move(made).value());
  if (added && held && !header_done_) buffers.held = held;
}

// `held`: the task that waits for the header before it turns sums into results, if there is one.
Result<std::unique_ptr<Task>> Step::make_reduction(size_t index, Direct** held) {
  const Bucket& bucket = state_.plan[index];
  const BucketBuffers& buffers = state_.buffers[index];
  const StepPath& path = state_.path;
  const DType sum_type = state_.data_type(bucket);
  auto shape = shape_of(data_operation(index), Kind::kBucket, sum_type, Algorithm::kDirect, bucket.elements);
  const auto done = [this, index, attempt = second_attempt_](const Status& status) {
    if (attempt == second_attempt_) bucket_done(index, status);
  };
  if (!path.transforms && !path.by_teams) {
    AllReducePlan all{bucket.elements, sum_type, Reduction::kSum, bytes(buffers.data), nullptr};
    return make_all_reduce(state_.mesh->operations, shape, state_.strategy.algorithm, std::move(all), done,
                           group_.workers());
  }
  DirectPlan direct;
  direct.slices = path.transforms ? group_.slices_of(bucket) : state_.teams.owners(bucket.elements);
  if (path.by_teams) direct.parts = state_.teams.parts(bucket.elements);
  direct.element = dtype_size(sum_type);
  direct.data = bytes(buffers.data);
  direct.ordered = !state_.options.reproducible;
  direct.add = [sum_type](void* destination, const void* source, size_t count) {
    reduce_into(sum_type, Reduction::kSum, destination, source, count);
  };
  direct.result_element = dtype_size(bucket.dtype);
  direct.result = buffers.result_data();
  if (path.transforms)
    direct.transform = [this, index](size_t begin, size_t end) { commit_.transform(index, begin, end); };
  shape.tag = Direct::tag(state_.mesh->operations, direct);
  auto task = std::make_unique<Direct>(state_.mesh->operations, shape, std::move(direct), !header_done_, done,
                                       group_.workers());
  if (!header_done_) *held = task.get();
  return std::unique_ptr<Task>(std::move(task));
}

void Step::bucket_done(size_t index, const Status& status) {
  if (!done_) return;
  if (!status.ok() && !header_done_) {
    // A peer may have refused the bucket because its headers did not agree; ours will tell the same.
    if (bucket_failure_.ok()) bucket_failure_ = status;
    return;
  }
  if (!status.ok()) return fail(status);
  BucketBuffers& buffers = state_.buffers[index];
  buffers.held = nullptr;
  buffers.reduced = true;
  const transport::Time now = loop_.now();
  const transport::Time sent = buffers.travels ? buffers.sent : now;
  trace_bucket(index, "gradients", begun_, buffers.marked);
  trace_bucket(index, "contribution", buffers.marked, sent);
  if (buffers.travels) {
    trace_bucket(index, "travel", sent, now);
    counters_.buckets.add(1);
    counters_.travel.add(now - sent);
  }
  --open_;
  if (state_.path.returns_early) {
    if (Status enqueued = devices_.return_results(index); !enqueued.ok()) return device_failed(enqueued);
  }
  if (state_.path.in_team && !state_.path.stays_on_device) {
    buffers.travelled = true;
  } else {
    ++reduced_;
  }
  launch();
}

// ---- teams

void Step::reduce_in_team(size_t index) {
  Status status = team_.reduce(index, [this, index](const Status& status) {
    if (!done_) return;
    if (!status.ok()) return team_failed(status);
    state_.path.stays_on_device ? bucket_done(index, {}) : reduce(index);
  });
  if (!status.ok()) device_failed(status);
}

// Results return once the sums of all buckets have begun, so their order is the same on all workers.
void Step::launch_gathers() {
  if (!state_.path.in_team || state_.path.stays_on_device || next_ < state_.plan.size()) return;
  while (done_ && next_gather_ < state_.plan.size() && state_.buffers[next_gather_].travelled) {
    team_.gather(next_gather_++, [this](const Status& status) {
      if (!done_) return;
      if (!status.ok()) return team_failed(status);
      ++reduced_;
      finish();
    });
  }
}

// A device does not show which peer it waits for. So each worker announces that it has enqueued all its work;
// the error of this exchange names the workers that have not.
void Step::tell_all_enqueued() {
  if (!state_.mesh || std::exchange(all_enqueued_, true)) return;
  ++open_;
  exchange(operations_.all_enqueued(second_attempt_), Kind::kBucket, DType::kUint8, 0, {},
           [this](const auto&) {
             --open_;
             finish();
           });
}

// NCCL does not report which peer is missing. Waits for the head or the exchange above to name it, then
// fails.
void Step::team_failed(const Status& cause) {
  const bool late = cause.code() == Code::kTimeout, lost = cause.code() == Code::kWorkerLost;
  if (!state_.mesh || !(late || lost)) return device_failed(cause);
  if (patience_) return;
  const transport::Duration patience = late ? std::chrono::milliseconds(50) : state_.options.lease;
  patience_ = loop_.schedule(loop_.now() + patience, [this, cause] {
    patience_ = 0;
    device_failed(cause);
  });
}

// ---- the commit

void Step::finish() {
  if (!done_ || !header_done_ || reduced_ < state_.plan.size() || open_ > 0 || committed_) return;
  // Without owners every worker has the whole mean, and no message is needed.
  if (state_.path.measures_norm && state_.positive > 0 && !norms_done_ && state_.path.updates_at_owner)
    return exchange_norms();
  committed_ = true;
  reduced_at_ = loop_.now();
  commit();
}

// Each rank sends the sum of squares of the slices that it transformed.
void Step::exchange_norms() {
  norms_done_ = true;
  open_ = 1;
  const bool exact = state_.options.reproducible;
  exchange(operations_.further_exchange(), Kind::kBucket, exact ? DType::kInt64 : DType::kFloat64,
           exact ? kSquareDigits : 1, commit_.norm_part(), [this](const auto& parts) {
             if (Status status = commit_.add_norm_parts(parts); !status.ok()) return fail(status);
             state_.result.gradient_norm = commit_.norm_on_host();
             open_ = 0;
             finish();
           });
}

// With a loss scale, or with clipping, nothing changes before the norm of the whole gradient is known; else
// each bucket is updated in turn.
void Step::commit() {
  if (state_.positive == 0) return all_done();
  const StepPath& path = state_.path;
  for (size_t b = 0; b < state_.plan.size(); ++b) {
    Status status = commit_.measure(b);
    if (status.ok() && !path.norm_comes_first) status = update(b);
    if (!status.ok()) return device_failed(status);
  }
  if (path.measures_norm && !path.updates_at_owner && !path.norms_on_device)
    state_.result.gradient_norm = commit_.norm_on_host();
  if (!path.norm_comes_first) return updated();
  if (!path.norms_on_device) return update_by_norm();
  devices_.when_reached(state_.request.deadline, or_device_failure([this] {
                          state_.result.gradient_norm = devices_.norm();
                          update_by_norm();
                        }));
}

// The norm is the same on all workers, since all have the same sums, or the same sum of what owners have
// measured.
void Step::update_by_norm() {
  if (!commit_.take_norm()) return end();
  for (size_t b = 0; b < state_.plan.size(); ++b) {
    if (Status status = update(b); !status.ok()) return device_failed(status);
  }
  updated();
}

Status Step::update(size_t index) {
  const transport::Time begun = loop_.now();
  Status status = commit_.update(index);
  if (status.ok()) trace_bucket(index, "update", begun, loop_.now());
  return status;
}

void Step::updated() {
  state_.result.applied = true;
  commit_.finish();
  if (!untrained_.begin_sync()) return deliver_values();
  const auto copied = [this] {
    devices_.when_reached(state_.request.deadline, or_device_failure([this] { exchange_untrained(); }));
  };
  waiter_.when_usable(
      state_.request.deadline, [this] { return untrained_.copy_to_host(); }, or_device_failure(copied));
}

void Step::exchange_untrained() {
  const Group* workers = group_.workers().get();
  untrained_.add_up(!workers || workers->ranks.front() == state_.rank());
  constexpr size_t kParts = 3;  // the two all-reduces, and this function itself
  const auto exchanged = join(kParts, or_fail([this] {
                                if (Status given = untrained_.write(); !given.ok())
                                  return device_failed(given);
                                deliver_values();
                              }));
  const auto sum = [&](UntrainedSync sync, DType dtype, void* data, size_t count) {
    if (!state_.mesh || count == 0) return exchanged({});
    auto shape = shape_of(operations_.untrained(sync), Kind::kBucket, dtype, Algorithm::kDirect, count);
    shape.reduction = static_cast<uint8_t>(Reduction::kSum);
    auto task = make_all_reduce(state_.mesh->operations, shape, state_.strategy.algorithm,
                                {count, dtype, Reduction::kSum, static_cast<std::byte*>(data), nullptr},
                                exchanged, group_.workers());
    task.ok() ? static_cast<void>(add(std::move(task).value())) : exchanged(task.status());
  };
  sum(UntrainedSync::kMean, DType::kFloat64, untrained_.means().data(), untrained_.means().size());
  sum(UntrainedSync::kFirst, DType::kUint8, untrained_.first_values().data(),
      untrained_.first_values().size());
  exchanged({});
}

void Step::deliver_values() {
  const Status ordered = devices_.order_streams_after_update();
  const bool unordered = ordered.code() == Code::kState;
  if (!ordered.ok() && !unordered) return device_failed(ordered);
  // Part of the step's result, so it is waited for.
  const bool norm = state_.path.norms_on_device && !state_.path.norm_comes_first;
  if (!state_.request.wait_for_devices && !norm && !unordered) return end();
  end_when_reached(norm);
}

// No worker has data left, and perhaps all workers meet for the last time. With the optimizer `none` the host
// updates its replicas.
void Step::all_done() {
  const Status same =
      state_.model.optimizer->is_none() ? Status() : compare_replicas(state_.model, state_.rank(), name());
  // Fails the session, as a failed device does.
  if (!same.ok() && on_device_failure_) return on_device_failure_(same);
  if (!same.ok()) return fail(same);
  const auto end_step = [this] { state_.request.wait_for_devices ? end_when_reached(false) : end(); };
  state_.mesh ? compare_values(end_step) : end_step();
}

void Step::end_when_reached(bool norm) {
  devices_.when_reached(state_.request.deadline, or_device_failure([this, norm] {
                          if (norm) state_.result.gradient_norm = devices_.norm();
                          end();
                        }));
}

void Step::end() {
  cancel_timers();
  if (!state_.result.applied) devices_.skipped();
  if (state_.mesh) state_.mesh->operations.end_call(state_.request.call, {});
  counters_.ended.add(1);
  if (state_.result.applied) counters_.applied.add(1);
  const transport::Time now = loop_.now();
  counters_.gradients.add(marked_ - begun_);
  counters_.reduction.add(reduced_at_ - marked_);
  counters_.update.add(now - reduced_at_);
  trace_step(now, false);
  Done done = std::move(done_);
  done_ = nullptr;
  done({}, state_.result);
}

// ---- operations

std::function<void(const Status&)> Step::or_fail(std::function<void()> then) {
  return [this, then = std::move(then)](const Status& status) {
    if (!done_) return;
    status.ok() ? then() : fail(status);
  };
}

std::function<void(const Status&)> Step::or_device_failure(std::function<void()> then) {
  return [this, then = std::move(then)](const Status& status) {
    if (!done_) return;
    status.ok() ? then() : device_failed(status);
  };
}

Task* Step::add(std::unique_ptr<Task> task) {
  task->rename(name());
  task->set_limit(state_.request.limit);
  return state_.mesh->operations.add(std::move(task), state_.request.deadline);
}

void Step::exchange(uint64_t operation, Kind kind, DType dtype, size_t count, std::vector<std::byte> mine,
                    std::function<void(const std::vector<std::vector<std::byte>>&)> then) {
  const auto gathered = [this, then = std::move(then)](const Status& status, const auto& all) {
    if (!done_) return;
    status.ok() ? then(all) : fail(status);
  };
  add(std::make_unique<Exchange>(state_.mesh->operations,
                                 shape_of(operation, kind, dtype, Algorithm::kOneHop, count), std::move(mine),
                                 gathered, group_.workers()));
}

}  // namespace dsgd

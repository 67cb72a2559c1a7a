#include "core/step/step.h"

#include <map>
#include <utility>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/collectives/exchange.h"
#include "core/reduce/exact_sum.h"
#include "core/step/divergence.h"
#include "core/step/gradient_check.h"
#include "transport/schema/codec.h"

namespace dsgd {

Step::Step(transport::Loop& loop, Model& model, StepOptions options,
           std::function<void(const Status&)> on_device_failure)
    : loop_(loop),
      on_device_failure_(std::move(on_device_failure)),
      state_(model, options),
      step_{[this] { return done_ != nullptr; }, [this](const Status& cause) { operation_failed(cause); },
            [this](const Status& cause) { device_failed(cause); },
            [this](const Status& cause) { team_failed(cause); }},
      group_(state_),
      tasks_(state_, group_, step_),
      trace_(state_, loop),
      waiter_(loop),
      devices_(state_, waiter_),
      optimizer_state_(state_, devices_),
      commit_(state_, devices_, optimizer_state_),
      wire_(state_),
      untrained_(state_, group_, step_, tasks_, devices_, waiter_),
      values_(state_, loop, waiter_),
      buckets_(state_, group_, step_, tasks_, trace_, devices_, wire_, commit_,
               [this] { commit_if_complete(); }) {}
Step::~Step() = default;

// ---- the plan

void Step::set_contexts(std::vector<DeviceContext> contexts) {
  state_.contexts = std::move(contexts);
  state_.location_of_replica.resize(state_.model.replicas.size());
  for (size_t c = 0; c < state_.contexts.size(); ++c) {
    const std::vector<uint32_t>& replicas = state_.contexts[c].replicas;
    for (size_t k = 0; k < replicas.size(); ++k) state_.location_of_replica[replicas[k]] = {c, k};
  }
}

void Step::set_teams(Teams teams, std::unique_ptr<device::CollectiveQueue> queue) {
  state_.teams = std::move(teams);
  buckets_.team().use(std::move(queue));
}

Status Step::set_plan(Plan plan, uint64_t version) {
  plan_digest_ = plan.digest();
  version_ = version;
  state_.plan = std::move(plan.buckets);
  state_.strategy = std::move(plan.strategy);
  state_.path = state_.choose_path();
  DSGD_RETURN_IF_ERROR(state_.marks.set_plan(state_.plan));
  DSGD_RETURN_IF_ERROR(state_.make_buffers());
  return make_buffers();
}

Status Step::change_plan(Plan plan) {
  plan_digest_ = plan.digest();
  state_.plan = std::move(plan.buckets);
  std::vector<char> ready;
  for (const BucketBuffers& buffers : state_.buffers) ready.push_back(buffers.progress.ready);
  DSGD_RETURN_IF_ERROR(state_.make_buffers());
  for (size_t b = 0; b < ready.size() && b < state_.buffers.size(); ++b)
    state_.buffers[b].progress.ready = ready[b];
  group_.change_view();
  return make_buffers();
}

// Of all parts, for the plan.
Status Step::make_buffers() {
  DSGD_RETURN_IF_ERROR(wire_.make_buffers());
  DSGD_RETURN_IF_ERROR(untrained_.make_buffers());
  DSGD_RETURN_IF_ERROR(optimizer_state_.make());
  trace_.counters().state.set(optimizer_state_.nbytes());
  return values_.make_buffers();
}

// ---- the header

void Step::reset(StepRequest request) {
  state_.request = std::move(request);
  state_.result = {};
  state_.result.step = static_cast<int64_t>(state_.request.step);
  state_.result.view = state_.mesh ? static_cast<int64_t>(state_.mesh->members().view().view) : 1;
  state_.result.size = state_.mesh ? state_.mesh->peers.size() : 1;
  state_.header_done = false;
  state_.numbers = {state_.request.call, state_.plan.size()};
  progress_ = {};
  trace_.begin_step();
  values_.stop();  // the comparison of an earlier step, or of an earlier attempt
  buckets_.begin_step();
  for (BucketBuffers& buffers : state_.buffers) buffers.progress = {};
}

void Step::begin(StepRequest request, Done done) {
  reset(std::move(request));
  done_ = std::move(done);
  group_.begin_step();
  commit_.begin_step();
  trace_.counters().buffers.set(state_.buffer_bytes);
  start_deadline_timer();
  if (Status status = devices_.begin_step(); !status.ok()) return device_failed(status);
  if (!state_.mesh) return on_header({}, {make_header(state_, {version_, plan_digest_, 0})});
  values_.fetch(values_.part_of(state_.request.step), state_.request.deadline,
                step_.or_device_failure([this] { send_header(); }));
}

void Step::buckets_ready(const std::vector<uint32_t>& buckets) {
  if (!running() || buckets.empty()) return;
  for (uint32_t bucket : buckets) state_.buffers[bucket].progress.ready = true;
  if (!done_) return;
  trace_.gradients_marked(buckets);
  buckets_.launch();
}

// ---- another view

// Callbacks return at once while done_ is empty, so a suspended step ignores them. A step in which no replica
// has a weight changes nothing, and its comparison of values needs the others: it can be suspended even in
// its commit.
bool Step::suspend(const Status& why) {
  if (!done_) return true;
  if (progress_.committed && state_.contributing_replicas > 0) return false;
  suspended_ = std::exchange(done_, nullptr);
  cancel_timers();
  devices_.note_step_skipped();
  buckets_.forget_held();
  waiter_.fail(why);
  return true;
}

void Step::begin_suspended(StepRequest request, Done done) {
  reset(std::move(request));
  suspended_ = std::move(done);
}

void Step::resume(uint64_t call) {
  StepRequest request = state_.request;
  request.call = call;
  request.deadline = loop_.now() + request.timeout;
  std::vector<uint32_t> ready;
  for (uint32_t b = 0; b < state_.buffers.size(); ++b) {
    if (state_.buffers[b].progress.ready) ready.push_back(b);
  }
  begin(std::move(request), std::exchange(suspended_, nullptr));
  buckets_ready(ready);
}

void Step::end_suspended(const StepResult& result) {
  state_.result = result;
  state_.drawn.clear();
  trace_.ended_elsewhere();
  std::exchange(suspended_, nullptr)({}, state_.result);
}

void Step::send_header() {
  const uint64_t digest = values_.digest(values_.part_of(state_.request.step));
  tasks_.add(std::make_unique<Exchange>(
      state_.mesh->operations,
      shape_of(state_.numbers.header(), Kind::kHeader, DType::kUint8, Algorithm::kOneHop, 0),
      make_header(state_, {version_, plan_digest_, digest}),
      [this](const Status& status, const auto& all) { on_header(status, all); },
      state_.mesh->members().world(), true));
}

void Step::on_header(const Status& status, const std::vector<std::vector<std::byte>>& headers) {
  if (!done_) return;
  // A mismatch means that some worker made another call, so no worker has all headers: none goes on with this
  // step.
  progress_.agreed = status.code() == Code::kMismatch;
  if (!status.ok()) {
    if (!progress_.agreed && !waits_for_view(status) && group_.members_have_left()) announce_failure(status);
    return operation_failed(status);
  }
  const Result<bool> changed = group_.regroup(state_.numbers.header());
  if (!changed.ok()) {  // the same on all workers
    progress_.agreed = !waits_for_view(changed.status());
    return operation_failed(changed.status());
  }
  if (changed.value()) buckets_.begin_second_attempt();
  const HeaderVerdict verdict = read_headers(&state_, group_.workers().get(), headers);
  if (!verdict.status.ok()) {
    progress_.agreed = true;
    if (verdict.difference == HeaderVerdict::Difference::kSettings) return compare_settings();
    if (verdict.difference == HeaderVerdict::Difference::kValues)
      return compare_values([this, why = verdict.status] { fail(why); });
    return fail(verdict.status);
  }
  if (const Status failure = buckets_.failure(); !failure.ok()) return operation_failed(failure);
  state_.header_done = true;
  wire_.begin_step();
  buckets_.go_on();
}

void Step::compare_settings() {
  tasks_.exchange(state_.numbers.further_exchange(), Kind::kHeader, DType::kUint8, 0,
                  bytes_of(settings_text(state_.model)),
                  [this](const auto& all) { fail(settings_difference(name(), *group_.workers(), all)); });
}

void Step::compare_values(std::function<void()> agreed) {
  values_.digest_all(state_.request.deadline, [this, agreed = std::move(agreed)](const Status& status,
                                                                                 std::vector<uint64_t> mine) {
    if (!done_) return;
    if (!status.ok()) return device_failed(status);
    tasks_.exchange(
        state_.numbers.further_exchange(), Kind::kHeader, DType::kUint8, 0,
        transport::encode(transport::ValueDigests{std::move(mine)}), [this, agreed](const auto& all) {
          std::map<int32_t, std::vector<uint64_t>> digests;
          for (size_t index = 0; index < all.size(); ++index) {
            const int32_t rank = group_.workers()->ranks[index];
            auto theirs = transport::decode_value_digests(all[index]);
            if (!theirs.ok())
              return fail(invalid_data(name(), rank, "invalid value digests: " + theirs.status().message()));
            digests[rank] = std::move(theirs).value().digests;
          }
          const Status same = find_divergence(state_.model, digests, name());
          same.ok() ? agreed() : fail(same);
        });
  });
}

// ---- the commit

void Step::commit_if_complete() {
  if (!done_ || !buckets_.complete() || progress_.exchanging || progress_.committed) return;
  if (state_.result.nonfinite > 0 && state_.options.nonfinite != NonFiniteAction::kZero)
    return end_non_finite();
  // Without owners every worker has the whole mean, and no message is needed.
  if (state_.path.measures_norm && state_.contributing_replicas > 0 && !progress_.norms_done &&
      state_.path.updates_at_owner)
    return exchange_norms();
  if (!progress_.untrained_exchanged && state_.contributing_replicas > 0 && untrained_.find_due())
    return exchange_untrained();
  progress_.committed = true;
  trace_.all_reduced();
  commit();
}

// All workers have the same reports, and each has its sums, as before a commit. So all workers end the step
// alike, without a further message.
void Step::end_non_finite() {
  if (state_.options.nonfinite == NonFiniteAction::kFail) {
    progress_.agreed = true;
    return fail(non_finite_failure(state_), {});
  }
  progress_.committed = true;
  trace_.all_reduced();
  state_.model.loss_scale.stepped(false);
  state_.result.skipped = true;
  end();
}

// Each rank sends the sum of squares of the slices that it transformed.
void Step::exchange_norms() {
  progress_.norms_done = true;
  progress_.exchanging = true;
  const bool exact = state_.options.reproducible;
  tasks_.exchange(state_.numbers.further_exchange(), Kind::kBucket, exact ? DType::kInt64 : DType::kFloat64,
                  exact ? kSquareDigits : 1, commit_.norm_part(), [this](const auto& parts) {
                    if (Status status = commit_.add_norm_parts(parts); !status.ok()) return fail(status);
                    state_.result.gradient_norm = commit_.norm_on_host();
                    progress_.exchanging = false;
                    commit_if_complete();
                  });
}

// With a loss scale, or with clipping, nothing changes before the norm of the whole gradient is known; else
// each bucket is updated in turn.
void Step::commit() {
  if (state_.contributing_replicas == 0) return end_without_data();
  const StepPath& path = state_.path;
  for (size_t b = 0; b < state_.plan.size(); ++b) {
    Status status = commit_.measure(b);
    if (status.ok() && !path.norm_comes_first) status = update(b);
    if (!status.ok()) return device_failed(status);
  }
  if (path.measures_norm && !path.updates_at_owner && !path.norms_on_device)
    state_.result.gradient_norm = commit_.norm_on_host();
  if (!path.norm_comes_first) return after_updates();
  if (!path.norms_on_device) return update_by_norm();
  devices_.when_queues_done(state_.request.deadline, step_.or_device_failure([this] {
    state_.result.gradient_norm = devices_.norm();
    update_by_norm();
  }));
}

void Step::update_by_norm() {
  if (!commit_.apply_norm()) {
    state_.result.skipped = true;
    return end();
  }
  for (size_t b = 0; b < state_.plan.size(); ++b) {
    if (Status status = update(b); !status.ok()) return device_failed(status);
  }
  after_updates();
}

Status Step::update(size_t index) {
  const transport::Time begun = loop_.now();
  Status status = commit_.update(index);
  if (status.ok()) trace_.bucket_updated(index, begun);
  return status;
}

void Step::after_updates() {
  state_.result.applied = true;
  wire_.finish(commit_.finish());
  if (progress_.untrained_exchanged) {
    if (Status given = untrained_.write(); !given.ok()) return device_failed(given);
  }
  deliver_values();
}

// Before the commit, so that a commit needs no other worker.
void Step::exchange_untrained() {
  progress_.untrained_exchanged = true;
  progress_.exchanging = true;
  untrained_.exchange([this] {
    progress_.exchanging = false;
    commit_if_complete();
  });
}

void Step::deliver_values() {
  const Status ordered = devices_.order_streams_after_update();
  const bool unordered = ordered.code() == Code::kState;
  if (!ordered.ok() && !unordered) return device_failed(ordered);
  // The norm is a part of the step's result, so the step waits for it.
  const bool norm_is_due = state_.path.norms_on_device && !state_.path.norm_comes_first;
  if (!state_.request.wait_for_devices && !norm_is_due && !unordered) return end();
  end_when_queues_done(norm_is_due);
}

// No worker has data left. This may be the last step, so all values are compared. With the optimizer `none`
// the host writes the values of each replica, and the replicas of this worker are not compared.
void Step::end_without_data() {
  const Status same =
      state_.model.optimizer->is_none() ? Status() : compare_replicas(state_.model, state_.rank(), name());
  if (!same.ok()) return on_device_failure_(same);  // fails the session, as a failed device does
  const auto end_step = [this] { state_.request.wait_for_devices ? end_when_queues_done(false) : end(); };
  state_.mesh ? compare_values(end_step) : end_step();
}

void Step::end_when_queues_done(bool norm) {
  devices_.when_queues_done(state_.request.deadline, step_.or_device_failure([this, norm] {
    if (norm) state_.result.gradient_norm = devices_.norm();
    end();
  }));
}

void Step::end() {
  cancel_timers();
  if (!state_.result.applied) devices_.note_step_skipped();
  if (state_.mesh) state_.mesh->operations.end_call(state_.request.call, {});
  trace_.ended();
  std::exchange(done_, nullptr)({}, state_.result);
}

}  // namespace dsgd

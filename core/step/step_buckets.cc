#include "core/step/step_buckets.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "core/base/sort_unique.h"
#include "core/base/text.h"
#include "core/collectives/direct.h"
#include "core/mesh/channels.h"
#include "core/reduce/kernels.h"
#include "core/reduce/reproducible.h"
#include "core/step/gradient_check.h"

namespace dsgd {

StepBuckets::StepBuckets(StepState& state, const StepGroup& group, const StepInFlight& step, StepTasks& tasks,
                         StepTrace& trace, DevicePath& devices, HalfWire& wire, Commit& commit,
                         std::function<void()> progressed)
    : state_(state),
      group_(group),
      step_(step),
      tasks_(tasks),
      trace_(trace),
      devices_(devices),
      wire_(wire),
      commit_(commit),
      progressed_(std::move(progressed)),
      copies_(state, group, step, tasks, commit, progressed_),
      host_(state),
      team_(state, host_, devices) {}

void StepBuckets::begin_step() {
  progress_ = {};
  copies_.begin_step();
}

void StepBuckets::begin_second_attempt() {
  progress_.second_attempt = true;
  progress_.failure = {};
}

void StepBuckets::go_on() {
  if (progress_.second_attempt) restart();
  for (BucketBuffers& buffers : state_.buffers) {
    if (Direct* held = std::exchange(buffers.progress.held, nullptr)) held->release();
    if (!step_.runs()) return;
  }
  launch();
}

bool StepBuckets::complete() const {
  return state_.header_done && progress_.reduced >= state_.plan.size() && progress_.open == 0 &&
         copies_.complete();
}

void StepBuckets::forget_held() {
  for (BucketBuffers& buffers : state_.buffers) buffers.progress.held = nullptr;
}

void StepBuckets::restart() {
  forget_held();
  state_.mesh->operations.drop(state_.numbers.exponents(0, false), state_.numbers.exponents(0, true),
                               Status(Code::kClosed, "the step begins again without a worker that has left"));
  const size_t begun = progress_.next;  // fetch() may start further buckets
  for (size_t b = 0; b < begun && step_.runs(); ++b) {
    // A bucket that is still being fetched goes on.
    if (std::exchange(state_.buffers[b].progress.contributed, false)) fetch(b);
  }
}

// Starts buckets in index order, even if they become ready in another order, so that all workers open the
// same ones.
void StepBuckets::launch() {
  // The units of the sums depend on all weights, which come with the headers.
  if ((state_.options.reproducible || state_.path.narrows) && !state_.header_done) return;
  // A team cannot take back a collective, so all workers must have agreed before.
  if (state_.path.by_teams && !state_.header_done) return;
  if (!state_.header_done && group_.members_have_left()) return;  // the header decides which workers remain
  // Called from the loop below by a bucket that ended at once; that loop goes on.
  if (std::exchange(launching_, true)) return;
  while (step_.runs() && progress_.next < state_.plan.size() && progress_.open < kOpenTasks &&
         state_.buffers[progress_.next].progress.ready) {
    ++progress_.open;
    const size_t index = progress_.next++;
    const auto begin = [this, index] { state_.path.in_team ? reduce_in_team(index) : fetch(index); };
    state_.contexts.back().is_host() ? begin()
                                     : devices_.follow_streams(index, step_.or_device_failure(begin));
  }
  launching_ = false;
  if (!step_.runs()) return;
  if (state_.path.by_teams && progress_.next == state_.plan.size()) tell_all_enqueued();
  report_gradients();
  launch_gathers();
  progressed_();
}

void StepBuckets::fetch(size_t index) {
  for (size_t c = 0; c < state_.contexts.size(); ++c) {
    if (state_.contexts[c].is_host()) continue;
    if (Status status = devices_.fetch(index, c); !status.ok()) return step_.device_failed(status);
  }
  if (state_.path.stays_on_device) return contribute(index);
  devices_.when_fetched(
      index,
      [this, index] {
        if (step_.runs()) fetched(index);
      },
      [this](const Status& status) { step_.device_failed(status); });
}

void StepBuckets::fetched(size_t index) {
  if (!state_.options.reproducible) return contribute(index);
  host_.raise_exponents(index);
  exchange_exponents(index);
}

// The largest of all workers', element by element.
void StepBuckets::exchange_exponents(size_t index) {
  const Bucket& bucket = state_.plan[index];
  if (!state_.mesh) return contribute(index);
  const DType dtype = reproducible::exponent_type(bucket.dtype);
  AllReducePlan all{bucket.elements, dtype, Reduction::kMax, state_.exponents_at(index, 0), nullptr};
  const Status made = tasks_.all_reduce(exponents_operation(index), std::move(all),
                                        step_.or_fail([this, index] { contribute(index); }));
  if (!made.ok()) step_.fail(made);
}

void StepBuckets::contribute(size_t index) {
  if (!state_.path.stays_on_device) host_.add_up(index);
  host_.write_trailers(index);
  reduce(index);
}

void StepBuckets::reduce(size_t index) {
  if (!state_.mesh) return bucket_done(index, {});
  BucketBuffers& buffers = state_.buffers[index];
  buffers.progress.contributed = true;
  trace_.bucket_sent(index);
  const Bucket& bucket = state_.plan[index];
  const StepPath& path = state_.path;
  const DType sum_type = state_.data_type(bucket);
  auto done = [this, index, attempt = progress_.second_attempt](const Status& status) {
    if (attempt == progress_.second_attempt) bucket_done(index, status);
  };
  if (path.has_owners || path.by_teams || narrows(bucket)) {
    reduce_directly(index, std::move(done));
  } else {
    AllReducePlan all{bucket.elements, sum_type, Reduction::kSum, bytes(buffers.data), nullptr};
    const Status made = tasks_.all_reduce(data_operation(index), std::move(all), std::move(done));
    if (!made.ok()) return step_.fail(made);
  }
  report_gradients();
}

// Until the header is done the task waits before it turns sums into results.
void StepBuckets::reduce_directly(size_t index, Task::Done done) {
  const Bucket& bucket = state_.plan[index];
  BucketBuffers& buffers = state_.buffers[index];
  const StepPath& path = state_.path;
  const DType sum_type = state_.data_type(bucket);
  DirectPlan direct;
  direct.slices = path.has_owners ? group_.slices_of(bucket)
                  : path.by_teams
                      ? state_.teams.owners(bucket.elements)
                      : slices_between(balanced_slices(bucket.elements, group_.workers()->size()));
  if (path.by_teams) direct.parts = state_.teams.parts(bucket.elements);
  direct.element = dtype_size(sum_type);
  direct.data = bytes(buffers.data);
  direct.ordered = !state_.options.reproducible;
  direct.add = std::bind_front(reduce_into, sum_type, Reduction::kSum);
  direct.result_element = dtype_size(bucket.dtype);
  direct.result = buffers.result_data();
  if (narrows(bucket)) wire_.round_contributions(index, group_.workers()->own_index, &direct);
  if (path.transforms || narrows(bucket)) {
    direct.transform = [this, index,
                        last = direct.slices[static_cast<size_t>(group_.workers()->own_index)].end](
                           size_t begin, size_t end) {
      if (state_.path.transforms) commit_.transform(index, begin, end);
      if (state_.path.narrows) wire_.round_results(index, begin, end);
      if (end == last) copies_.owner_done(index);
    };
  }
  auto shape = shape_of(data_operation(index), Kind::kBucket, sum_type, Algorithm::kDirect, bucket.elements);
  shape.tag = Direct::tag(state_.mesh->operations, direct);
  auto task = std::make_unique<Direct>(state_.mesh->operations, shape, std::move(direct), !state_.header_done,
                                       std::move(done), group_.workers());
  Direct* const held = state_.header_done ? nullptr : task.get();
  Task* const added = tasks_.add(std::move(task));
  if (added && held && !state_.header_done) buffers.progress.held = held;
}

void StepBuckets::bucket_done(size_t index, const Status& status) {
  if (!step_.runs()) return;
  if (!status.ok() && !state_.header_done) {
    // A peer may have rejected the bucket because the headers disagree. Keep the error until this worker has
    // the headers, too: their difference says more.
    if (progress_.failure.ok()) progress_.failure = status;
    return;
  }
  if (!status.ok()) return step_.fail(status);
  BucketBuffers& buffers = state_.buffers[index];
  buffers.progress.held = nullptr;
  buffers.progress.reduced = true;
  trace_.bucket_reduced(index);
  --progress_.open;
  copies_.bucket_reduced(index);
  if (!step_.runs()) return;
  if (state_.path.returns_early) {
    if (Status enqueued = devices_.return_results(index); !enqueued.ok())
      return step_.device_failed(enqueued);
  }
  if (state_.path.in_team && !state_.path.stays_on_device) {
    buffers.progress.awaits_gather = true;
  } else {
    ++progress_.reduced;
  }
  launch();
}

// Sends this worker's report of non-finite gradients (key `nonfinite`), once its last bucket is summed. The
// exchange keeps the step open, so nothing changes before it has ended.
void StepBuckets::report_gradients() {
  if (!step_.runs() || !state_.options.checks_gradients() || progress_.gradients_reported ||
      !state_.header_done || state_.contributing_replicas == 0)
    return;
  const bool summed = std::all_of(state_.buffers.begin(), state_.buffers.end(), [](const BucketBuffers& b) {
    return b.progress.contributed || b.progress.reduced;
  });
  if (!summed) return;
  progress_.gradients_reported = true;
  ++progress_.open;
  const auto read = [this](const std::vector<std::vector<std::byte>>& reports) {
    if (Status status = read_gradient_reports(&state_, group_.workers().get(), reports); !status.ok())
      return step_.fail(status);
    --progress_.open;
    progressed_();
  };
  if (state_.mesh) {
    return tasks_.exchange(state_.numbers.gradient_reports(), Kind::kBucket, DType::kUint8, 0,
                           make_gradient_report(state_), read);
  }
  const auto report = [this, read] { read({make_gradient_report(state_)}); };
  if (!state_.path.alone_on_device) return report();
  devices_.when_queues_done(state_.request.deadline, step_.or_device_failure(report));
}

// ---- teams

void StepBuckets::reduce_in_team(size_t index) {
  const bool early = state_.path.updates_early;
  const auto reduced = [this, index, early](const Status& status) {
    if (!step_.runs() && !early) return;
    if (!status.ok()) return step_.team_failed(status);
    if (early) return;
    state_.path.stays_on_device ? bucket_done(index, {}) : reduce(index);
  };
  std::function<void()> enqueued;
  if (early) enqueued = [this, index] { bucket_done(index, {}); };
  Status status = team_.reduce(index, reduced, std::move(enqueued));
  if (!status.ok()) step_.device_failed(status);
}

// Results return once the sums of all buckets have begun, so their order is the same on all workers.
void StepBuckets::launch_gathers() {
  if (!state_.path.in_team || state_.path.stays_on_device || progress_.next < state_.plan.size()) return;
  while (step_.runs() && progress_.next_gather < state_.plan.size() &&
         state_.buffers[progress_.next_gather].progress.awaits_gather) {
    team_.gather(progress_.next_gather++, [this](const Status& status) {
      if (!step_.runs()) return;
      if (!status.ok()) return step_.team_failed(status);
      ++progress_.reduced;
      progressed_();
    });
  }
}

// A device does not show which peer it waits for. So each worker announces that it has enqueued all its work;
// the error of this exchange names the workers that have not.
void StepBuckets::tell_all_enqueued() {
  if (!state_.mesh || std::exchange(progress_.all_enqueued, true)) return;
  ++progress_.open;
  tasks_.exchange(state_.numbers.all_enqueued(progress_.second_attempt), Kind::kBucket, DType::kUint8, 0, {},
                  [this](const auto&) {
                    --progress_.open;
                    progressed_();
                  });
}

// ---- announcements and messages

void StepBuckets::announce_failure(const Status& why) {
  for (size_t b = 0; b < state_.plan.size() && b <= progress_.next; ++b) {
    if (state_.buffers[b].progress.reduced) continue;
    for (const bool second : {false, true}) {
      // No worker makes the other attempt: the headers are compared, or no worker has left.
      if (second != progress_.second_attempt && (state_.header_done || !group_.members_have_left())) continue;
      if (state_.options.reproducible)
        state_.mesh->operations.announce_failure(state_.numbers.exponents(b, second), why);
      state_.mesh->operations.announce_failure(state_.numbers.data(b, second), why);
    }
  }
  if (state_.options.checks_gradients())
    state_.mesh->operations.announce_failure(state_.numbers.gradient_reports(), why);
  if (state_.path.by_teams)
    state_.mesh->operations.announce_failure(state_.numbers.all_enqueued(progress_.second_attempt), why);
}

std::string StepBuckets::parameters_text(const std::vector<uint64_t>& operations) const {
  constexpr size_t kNamed = 3;
  std::vector<uint32_t> parameters;
  for (size_t bucket = 0; bucket < state_.plan.size(); ++bucket) {
    const bool concerned = std::any_of(operations.begin(), operations.end(), [&](uint64_t operation) {
      return operation == exponents_operation(bucket) || operation == data_operation(bucket) ||
             operation == state_.numbers.copies(bucket);
    });
    if (concerned)
      parameters.insert(parameters.end(), state_.plan[bucket].parameters.begin(),
                        state_.plan[bucket].parameters.end());
  }
  sort_unique(parameters);
  if (parameters.empty()) return {};
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(parameters.size(), kNamed); ++i)
    names.push_back("'" + state_.model.parameters[parameters[i]]->name + "'");
  return (parameters.size() == 1 ? "parameter " : "parameters ") + list_text(names, parameters.size());
}

}  // namespace dsgd

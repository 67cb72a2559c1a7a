// Changes of the view: the workers that are left agree on where they stand, and training goes on.
//
//   enter_view  ends all work of the earlier view; the step in flight keeps its marks
//   report      sends the number of completed steps to all others, after that work has ended
//   decide      decides from all reports, alike on all workers
//   deal_samples  deals out the samples of lost workers
//   copy_state  a worker that is one step behind copies the state of a worker that is not. A learner fetches
//               the state that it lacks from several workers (engine_join.cc). If any worker has a replica on
//               a GPU, the learner copies all state from one worker instead
//   place_state where owners keep the optimizer's state, moves it to the owners of the new view
//               (engine_owners.cc)
//   resume      begins the suspended step again, from the same gradients; in a paused view, which has fewer
//               than min_workers, the step waits for a later view instead
//
// A step thus has the contributions of all workers of the earlier view, or of exactly those of the new one.
// If only one worker has completed a step, the others copy it. If that worker dies before any of them has
// copied, they repeat the step without it. So a step is final only when the header of the next one is
// complete. A loss in between begins all this again in a later view.
//
// A worker that is behind could instead fetch the sums of the step. But then every worker would have to keep
// them until the header of the next step is complete: twice the buffers, or one more round trip in each step.
// Losses are rare, so it copies values and optimizer state.

#include <algorithm>
#include <cstring>

#include "core/base/describe.h"
#include "core/base/join.h"
#include "core/base/text.h"
#include "core/session/engine.h"
#include "transport/schema/codec.h"

namespace dsgd {

using transport::BulkHeader;
using transport::JoinReply;
using transport::ViewReport;

// Copies of another worker's values and optimizer state, by parameter; null or empty where nothing is copied.
struct Engine::StateCopy {
  HostValues values;
  OptimizerState state;
  std::vector<uint64_t> updates;
};

void Engine::change_view(const JoinReply& view, const Status& why) {
  if (!failure_.ok()) return;
  if (!torn_.ok()) return fail(why, false);
  if (enter_) return enter_first_view(view, why);
  next_view_ = NextView{view, why, {}};
  enter_view();
}

void Engine::note_departure(int32_t rank, uint64_t departure_call) {
  if (next_view_) {
    next_view_->departures.emplace_back(rank, departure_call);
  } else if (mesh_) {
    mesh_->peers.note_departure(rank, departure_call);
  }
}

Status Engine::view_changed() const {
  return Status(Code::kViewChanged, "the workers of the job have changed (" + view_cause_.message() +
                                        "): this worker is now rank " + std::to_string(rank()) + " of " +
                                        std::to_string(size()) + ", view " + std::to_string(view()) +
                                        "; go on without this call, or make it again on all workers")
      .with_rank(view_cause_.rank(), view_cause_.host());
}

// Admits a collective or an object call, or says why not. The first one after a change of the view fails,
// unless the result of a step has named the view before.
Status Engine::admit_call() {
  if (!failure_.ok()) return failure_;
  if (enter_) {
    return Status(Code::kState,
                  "this worker has joined a running job, in which it takes part only after dsgd_start; call "
                  "dsgd_start first");
  }
  if (recovering_) return view_changed();
  if (view() == reported_view_) return {};
  reported_view_ = view();
  return view_changed();
}

// Whether collectives of the host are open, rather than a start, which begins again, or a checkpoint of an
// interval.
bool Engine::has_host_calls() const {
  for (uint32_t channel = starting_ ? 1 : 0; channel < kCheckpointChannel; ++channel) {
    if (channels_[channel].running > 0 || !channels_[channel].pending.empty()) return true;
  }
  return false;
}

void Engine::enter_view() {
  if (!next_view_ || applying_) return;
  view_cause_ = next_view_->why;
  const Status why(Code::kViewChanged, "the workers of the job have changed: " + view_cause_.message());
  if (!step_.suspend(why)) return;  // its end enters the view
  const NextView next = std::move(*next_view_);
  next_view_.reset();
  entering_ = true;
  keep_learners(next.view.members);
  const bool fails_calls = !std::exchange(recovering_, true) && has_host_calls();
  mesh_->change_view(next.view, why);
  fail_pending(view_changed());
  fail_checkpoints(view_changed());
  objects_.change_view(peers(), view_changed());
  answer_completed(view_changed());
  if (last_step_) {
    last_step_->asked = {};  // asked again in the new view
    limit_wait_for_last_step();
  }
  entering_ = false;
  if (fails_calls) reported_view_ = view();
  departed_.clear();
  goodbyes_.clear();
  log_->warning("view " + std::to_string(view()) + " with " + std::to_string(size()) +
                " workers: " + view_cause_.message());
  if (on_view_) on_view_(next.view);
  for (const auto& [rank, call] : next.departures) mesh_->peers.note_departure(rank, call);
  step_.when_devices_done(
      waiter_, in_view([this](const Status& status) { status.ok() ? report() : fail(status, true); }));
}

// A learner is in a view for the first time. It has nothing to end.
void Engine::enter_first_view(const JoinReply& view, const Status& why) {
  enter_ = nullptr;
  learner_ = recovering_ = true;
  view_cause_ = why;
  reported_view_ = view.view;
  if (learning_) {
    mesh_->change_view(view, why);
  } else if (Status opened = open(view); !opened.ok()) {
    return fail(opened, true);
  }
  objects_.change_view(peers(), why);  // numbers of its puts are those of this view
  if (on_view_) on_view_(view);
  report();
}

std::string Engine::present_signature() const {
  const StrategySpec& strategy = started_ ? step_.strategy() : starting_->strategy;
  return signature(describe_plan(plan_of(strategy), strategy), false);
}

void Engine::report() {
  ViewReport mine;
  // A learner that has all state counts as one that holds it, since others release what it has got.
  mine.learner = learner_ && !started_;
  if (started_ || learner_) {
    const std::string signed_text = present_signature();
    mine.signature = digest_of(signed_text);
    mine.signature_length = signed_text.size();
  }
  mine.started = started_;
  mine.on_host = started_ ? is_on_host() : learning_ != nullptr;
  mine.steps = next_step_;
  if (started_) mine.held = held_;
  mine.strategy_version = strategy_version_;
  if (started_ || starting_) {  // until then the host may change the model
    mine.replicas = static_cast<uint32_t>(model_.replicas.size());
    mine.learning_rate = model_.optimizer->learning_rate();
    mine.loss_scale = model_.loss_scale.factor();
    mine.loss_scale_age = static_cast<uint32_t>(model_.loss_scale.age());
  }
  mine.outcome = last_result_;
  for (const Channel& channel : channels_) mine.calls.push_back(channel.next_call);
  report_samples(&mine);
  // A number that no call of the host reaches, and another one in each view.
  const uint64_t number = call_number(0, kCallsOfAChannel - view());
  const auto call = std::make_shared<Call>(Call{number, deadline(), deadline_setting()});
  exchange(call, shape_of(0, Kind::kView, DType::kUint8, Algorithm::kOneHop, 0), transport::encode(mine),
           "the change to view " + std::to_string(view()),
           in_view([this, call](const Status& status, const std::vector<std::vector<std::byte>>& all) {
             status.ok() ? on_reports(call, all) : on_missing_report(call, status);
           }));
}

// A worker whose report is missing because it has closed its session left in an earlier view: the head was
// lost, or its Leave came too late. The head takes such a worker for lost and publishes a view without it. If
// no head is left, no view comes, and the session fails at the deadline.
void Engine::on_missing_report(const std::shared_ptr<Call>& call, const Status& why) {
  if (why.code() != Code::kWorkerLost || why.rank() == mesh_->members().view().head_rank)
    return fail(why, true);
  log_->info(why.message() + "; waits for a view without it");
  loop_.schedule(call->deadline, [this, alive = std::weak_ptr(alive_), entered = view(), why] {
    if (!alive.expired() && recovering_ && entered == view()) fail(why, true);
  });
}

// The copies of the state in this view, and the work that follows.
struct Engine::Copying {
  std::shared_ptr<Call> call;
  int32_t source = 0;
  std::vector<int32_t> learners;  // that copy
  // All that copy; the learners; and those that copy trained parameters and state, too. Each with the source.
  std::shared_ptr<const Group> group, learning, whole;
  bool fetches = false;  // the learners fetch trained parameters and state (engine_join.cc)
  std::function<void()> then;
};

// The result of decide().
struct Engine::ViewDecision {
  int32_t source = 0;              // whose state counts: the lowest rank with the most steps
  std::vector<int32_t> copiers;    // a step behind, or learners
  std::vector<int32_t> learners;   // of the copiers
  std::vector<int32_t> different;  // learners that cannot take part: their settings differ
  std::vector<uint64_t> calls = std::vector<uint64_t>(kChannels, 1);  // by channel: the next one
  bool all_started = true;
  bool all_on_host = true;
  uint32_t replicas = 0;
};

namespace {

Result<std::vector<ViewReport>> decode_reports(const std::vector<std::vector<std::byte>>& encoded) {
  std::vector<ViewReport> reports;
  for (const std::vector<std::byte>& bytes : encoded) {
    const auto invalid = [&](const std::string& why) {
      return invalid_data("", static_cast<int32_t>(reports.size()),
                          "an invalid report about a change of view: " + why);
    };
    auto report = transport::decode_view_report(bytes);
    if (!report.ok()) return invalid(report.status().message());
    if (report->calls.size() != kChannels) return invalid(counted(report->calls.size(), "channel"));
    reports.push_back(std::move(report).value());
  }
  return reports;
}

}  // namespace

Result<Engine::ViewDecision> Engine::decide(const std::vector<ViewReport>& reports) const {
  const auto lost = [this](const std::string& consequence) {
    return Status(Code::kWorkerLost, view_cause_.message() + "; " + consequence + "; start the job again")
        .with_rank(view_cause_.rank(), view_cause_.host());
  };
  const auto behind = [](const ViewReport& a, const ViewReport& b) {
    return std::pair(!a.learner, a.steps) < std::pair(!b.learner, b.steps);
  };
  const auto source = std::max_element(reports.begin(), reports.end(), behind);  // the first of several
  if (source->learner) return lost("no worker that is left holds the values");
  ViewDecision decision;
  decision.source = static_cast<int32_t>(source - reports.begin());
  for (int32_t rank = 0; rank < size(); ++rank) {
    const ViewReport& report = reports[static_cast<size_t>(rank)];
    const bool alike =
        report.steps + 1 >= source->steps && report.strategy_version == source->strategy_version;
    if (!alike && !report.learner) {
      const bool joined = view_cause_.code() == Code::kViewChanged;
      return lost((joined ? "it joined" : "it was lost") +
                  std::string(" while the workers changed the strategy or loaded a checkpoint, and ") +
                  mesh_->members().name(rank) + " has not ended that");
    }
    const bool differs = report.learner && (report.signature != source->signature ||
                                            report.signature_length != source->signature_length);
    if (differs) {
      decision.different.push_back(rank);
    } else if (report.learner || report.steps < source->steps) {
      decision.copiers.push_back(rank);
      if (report.learner) decision.learners.push_back(rank);
    }
    decision.all_started = decision.all_started && (report.started || report.learner);
    decision.all_on_host = decision.all_on_host && report.on_host;
    for (size_t channel = 0; channel < kChannels; ++channel)
      decision.calls[channel] = std::max(decision.calls[channel], report.calls[channel]);
    decision.replicas += report.replicas;
  }
  return decision;
}

void Engine::on_reports(const std::shared_ptr<Call>& call,
                        const std::vector<std::vector<std::byte>>& encoded) {
  const auto reports = decode_reports(encoded);
  if (!reports.ok()) return fail(reports.status(), true);
  const auto decided = decide(reports.value());
  if (!decided.ok()) return fail(decided.status(), true);
  const ViewDecision& decision = decided.value();
  const ViewReport& source = reports.value()[static_cast<size_t>(decision.source)];
  total_replicas_ = decision.replicas;
  if (Status dealt = deal_samples(reports.value(), source.outcome.all_done); !dealt.ok())
    return fail(dealt, true);
  if (started_) {
    step_.set_replicas(total_replicas_);
    auto plan = plan_of(step_.strategy());
    Status planned = plan.status();
    if (planned.ok()) planned = step_.change_plan(std::move(plan).value());
    if (!planned.ok()) return fail(planned, true);
  }
  if (decision.all_started) return copy_and_resume(call, decision, reports.value());
  if (started_) note_held();  // no step has been made, so all state is zero, everywhere
  mesh_->operations.end_call(call->number, {});
  if (mesh_->members().view().paused) return;  // a later view starts again
  learner_ = false;
  learning_ = nullptr;
  resume(decision.calls);
  start_again(reports.value());
}

void Engine::copy_and_resume(const std::shared_ptr<Call>& call, const ViewDecision& decision,
                             const std::vector<ViewReport>& reports) {
  const ViewReport& source = reports[static_cast<size_t>(decision.source)];
  std::vector<HeldRanges> held;
  for (const ViewReport& report : reports) held.push_back(report.learner ? HeldRanges() : report.held);
  const auto placed = [this, call, calls = decision.calls, paused = mesh_->members().view().paused] {
    mesh_->operations.end_call(call->number, {});
    if (!paused) {
      resume(calls);
      resume_step();
    } else if (last_step_) {  // recovery ends in a later view
      ask_for_last_step();
    }
    if (!std::exchange(learner_, false)) return;
    learning_ = nullptr;
    std::exchange(starting_, std::nullopt)->done({});
  };
  const auto with_source = [&](std::vector<int32_t> ranks) {
    ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), decision.source), decision.source);
    return std::make_shared<const Group>(std::move(ranks), rank());
  };
  const auto copying = std::make_shared<Copying>();
  copying->call = call;
  copying->source = decision.source;
  copying->learners = decision.learners;
  copying->group = with_source(decision.copiers);
  copying->learning = with_source(decision.learners);
  copying->fetches = decision.all_on_host && !decision.learners.empty();
  if (!copying->fetches) drop_learners(Status(Code::kState, "the state is copied"));
  std::vector<int32_t> whole = decision.copiers;
  if (copying->fetches)
    std::erase_if(whole, [&](int32_t one) { return reports[static_cast<size_t>(one)].learner; });
  copying->whole = with_source(std::move(whole));
  copying->then = [this, call, held = std::move(held), placed] { place_state(call, held, placed); };
  const bool is_source = rank() == decision.source;
  if (!decision.different.empty()) {
    const auto informed = with_source(decision.different);
    if (informed->own_index < 0) {
      ++call->next;  // the broadcast of others
    } else {
      name_difference(copying, informed, source);
      if (!is_source) return;
    }
  }
  if (copying->group->size() == 1 || copying->group->own_index < 0) return copying->then();
  if (!is_source && !learner_ && !step_.running()) {
    return fail(Status(Code::kInternal, mesh_->members().name(decision.source) + " has completed step " +
                                            std::to_string(next_step_) + ", which this worker has not begun"),
                true);
  }
  is_source ? give_state(copying) : copy_state(copying, decision.source, reports);
}

// A learner with other settings fails, and the others go on in a view without it.
void Engine::name_difference(const std::shared_ptr<Copying>& copying, std::shared_ptr<const Group> informed,
                             const ViewReport& report) {
  const bool source = rank() == copying->source;
  const auto theirs = std::make_shared<std::vector<std::byte>>();
  if (source) {
    *theirs = bytes_of(present_signature());
  } else if (report.signature_length <= Object::kLargest) {
    theirs->resize(report.signature_length);
  }
  give_all(copying->call, Kind::kView, DType::kUint8, *theirs, copying->source, "dsgd_start",
           in_view([this, source, theirs](const Status& status) {
             if (!status.ok()) return fail(status, true);
             if (!source) fail_newcomer(first_difference(text_of(*theirs), present_signature(), rank()));
           }),
           std::move(informed));
}

// ---- the samples of data shards

void Engine::report_samples(ViewReport* mine) const {
  if (!shards_) return;
  constexpr size_t kRest = 4096;  // of a report
  transport::SampleReport samples = shards_->report(step_.running());
  if (!samples.joined && samples.drawn.made == 0) return;
  std::vector<std::byte> bytes = transport::encode(samples);
  if (bytes.size() + mine->held.size() > transport::kSmallBytes - kRest) {
    samples.ledgers.clear();
    bytes = transport::encode(samples);
  }
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  mine->samples.assign(data, data + bytes.size());
}

// `over`: the last step has ended an epoch.
Status Engine::deal_samples(const std::vector<ViewReport>& reports, bool over) {
  if (!shards_) return {};
  std::vector<transport::SampleReport> samples;
  std::vector<uint64_t> steps;
  for (const ViewReport& report : reports) {
    samples.emplace_back();
    steps.push_back(report.steps);
    if (report.samples.empty()) continue;
    auto theirs = transport::decode_sample_report(std::as_bytes(std::span(report.samples)));
    if (!theirs.ok()) {
      return invalid_data("", static_cast<int32_t>(samples.size() - 1),
                          "an invalid report about its data shards: " + theirs.status().message());
    }
    samples.back() = std::move(theirs).value();
  }
  if (!shards_->deal(samples, steps, over))
    log_->warning(
        "cannot deal out the samples of lost workers: because of too many workers or data shards, the report "
        "of a worker is longer than 64 KiB; data shards keep their split, and these samples are skipped in "
        "this epoch");
  shards_->resume();
  return {};
}

// ---- the state of a worker that has completed a step more, or of any for a learner

void Engine::give_state(const std::shared_ptr<Copying>& copying) {
  auto values = host_values(true);
  if (!values.ok()) return fail(values.status(), true);
  const auto copy = std::make_shared<StateCopy>();
  copy->values = std::move(values).value();
  copy->updates = model_.updates;
  const transport::Time deadline = copying->call->deadline;
  step_.optimizer_state().copy_state(
      false, deadline, in_view([this, deadline, copying, copy](const Status& fetched) {
        if (!fetched.ok()) return fail(fetched, true);
        if (step_.updates_at_owner()) {
          copy->state.resize(model_.parameters.size());  // owners get theirs by place_state()
        } else {
          copy->state = step_.optimizer_state().host_state();
        }
        step_.when_reached(deadline, in_view([this, copying, copy](const Status& reached) {
                             if (!reached.ok()) return fail(reached, true);
                             give_objects(copying, in_view([this, copying, copy] {
                                            broadcast_state(copying, copy, copying->then);
                                          }));
                           }));
      }));
}

// Before the state: a learner that has the state is none in the next view, and is given no objects there.
void Engine::give_objects(const std::shared_ptr<Copying>& copying, std::function<void()> then) {
  const auto given = join(copying->learners.size() + 1, [then](const Status&) { then(); });
  for (int32_t learner : copying->learners) objects_.give(*peers(), learner, given);
  given({});
}

void Engine::copy_state(const std::shared_ptr<Copying>& copying, int32_t source,
                        const std::vector<ViewReport>& reports) {
  const ViewReport& report = reports[static_cast<size_t>(source)];
  const bool fetches = learner_ && copying->fetches;
  if (learner_) {
    if (!learning_) {
      auto contexts = make_contexts(model_);
      if (!contexts.ok()) return fail(contexts.status(), true);
      step_.set_contexts(std::move(contexts).value());
    }
    strategy_version_ = report.strategy_version;
    auto plan = plan_of(starting_->strategy);
    if (!plan.ok()) return fail(plan.status(), true);
    if (Status applied = apply_plan(std::move(plan).value()); !applied.ok()) return;
  }
  const auto copy = std::make_shared<StateCopy>();
  device::Device& device = *step_.contexts().back().device;
  copy->updates.resize(model_.parameters.size());
  copy->values.resize(model_.parameters.size());
  copy->state.resize(model_.parameters.size());
  for (size_t p = 0; p < model_.parameters.size(); ++p) {
    const Parameter& parameter = *model_.parameters[p];
    if (parameter.trained ? fetches : !learner_) continue;
    auto value = device.allocate_staging(parameter.nbytes());
    Status status = value.status();
    if (value.ok()) copy->values[p] = std::move(value).value();
    const bool has_state = parameter.trained && !step_.updates_at_owner();
    const size_t states = has_state ? step_.optimizer_state().states_of(parameter) : 0;
    for (size_t s = 0; s < states && status.ok(); ++s) {
      auto tensor = device.allocate_staging(parameter.state_nbytes());
      status = tensor.status();
      if (tensor.ok()) copy->state[p].push_back(std::move(tensor).value());
    }
    if (!status.ok()) return fail(status, true);
  }
  if (!fetches) {
    log_->info("copies the state after " + counted(report.steps, "step") + " from " +
               mesh_->members().name(copying->source));
  }
  broadcast_state(copying, copy, [this, copying, copy, reports, source, fetches] {
    const ViewReport& report = reports[static_cast<size_t>(source)];
    const auto apply = in_view([this, copying, copy, report] { apply_copy(copying, copy, report); });
    fetches ? fetch_rest(reports, report, copying->call->deadline, apply) : apply();
  });
}

// Only learners take untrained parameters, which differ between workers until their next `sync`.
void Engine::broadcast_state(const std::shared_ptr<Copying>& copying, std::shared_ptr<StateCopy> copy,
                             std::function<void()> then) {
  struct Tensor {
    void* data;
    size_t nbytes;
    DType dtype;
    std::shared_ptr<const Group> group;
  };
  std::vector<Tensor> tensors = {
      {copy->updates.data(), copy->updates.size() * sizeof(uint64_t), DType::kInt64, copying->group}};
  for (size_t p = 0; p < model_.parameters.size(); ++p) {
    const Parameter& parameter = *model_.parameters[p];
    if (parameter.trained ? copying->whole->size() > 1 : !copying->learners.empty())
      tensors.push_back({copy->values[p].get(), parameter.nbytes(), parameter.dtype,
                         parameter.trained ? copying->whole : copying->learning});
    const size_t states = parameter.trained && copying->whole->size() > 1 && !step_.updates_at_owner()
                              ? step_.optimizer_state().states_of(parameter)
                              : 0;
    for (size_t s = 0; s < states; ++s) {
      const bool here = s < copy->state[p].size();
      tensors.push_back({here ? copy->state[p][s].get() : nullptr, here ? parameter.state_nbytes() : 0,
                         wide(parameter.dtype), copying->whole});
    }
  }
  const auto all =
      join(tensors.size(),
           in_view([this, copy, then](const Status& status) { status.ok() ? then() : fail(status, true); }));
  for (Tensor& tensor : tensors) {
    if (tensor.group->own_index < 0) {
      ++copying->call->next;  // the broadcast of others
      all({});
      continue;
    }
    give_all(copying->call, Kind::kView, tensor.dtype,
             std::span(static_cast<std::byte*>(tensor.data), tensor.nbytes), copying->source,
             "the change to view " + std::to_string(view()), all, std::move(tensor.group));
  }
}

// The copy is whole. A change of the view waits until all of it is in the replicas.
void Engine::apply_copy(const std::shared_ptr<Copying>& copying, std::shared_ptr<StateCopy> copy,
                        const ViewReport& report) {
  applying_ = true;
  drop_learners(Status(Code::kState, "this worker has copied a step"));
  if (step_.updates_at_owner() && !learner_) step_.optimizer_state().advance_state(copy->updates);
  OptimizerState& state = step_.optimizer_state().host_state();
  state.resize(model_.parameters.size());
  for (size_t p = 0; p < state.size(); ++p) {
    for (size_t s = 0; s < copy->state[p].size(); ++s) {
      if (s == state[p].size()) {
        state[p].push_back(copy->state[p][s]);
      } else {
        std::memcpy(state[p][s].get(), copy->state[p][s].get(), model_.parameters[p]->state_nbytes());
      }
    }
  }
  model_.updates = copy->updates;
  model_.loss_scale.restore(report.loss_scale, static_cast<int>(report.loss_scale_age));
  const auto applied = [this, report, copying, copy](const Status& status) {
    if (!failure_.ok()) return;
    if (!status.ok()) return fail(status, true);
    applying_ = false;
    const uint64_t entered = view();
    if (learner_) {
      end_copied_start(report);
    } else {
      end_copied_step(report);  // enters a view that has come meanwhile
    }
    if (entered == view()) copying->then();
  };
  const transport::Time deadline = copying->call->deadline;
  step_.optimizer_state().copy_state(true, deadline, [this, deadline, copy, applied](const Status& copied) {
    const Status spread = copied.ok() ? spread_values(copy->values) : copied;
    spread.ok() ? step_.when_reached(deadline, applied) : applied(spread);
  });
}

void Engine::end_copied_step(const ViewReport& report) {
  if (shards_) shards_->commit_copied();
  StepResult result{
      report.outcome, static_cast<int64_t>(next_step_), {}};  // in the view in which it was made
  if (result.nonfinite > 0)
    result.nonfinite_text = counted(static_cast<size_t>(result.nonfinite), "element") +
                            ", the first on rank " + std::to_string(result.nonfinite_rank);
  step_.end_suspended(result);
}

void Engine::end_copied_start(const ViewReport& report) {
  started_ = true;
  next_step_ = report.steps;
  joined_at_ = report.steps;
  last_result_ = StepResult{report.outcome, static_cast<int64_t>(next_step_) - 1, {}};
  model_.optimizer->set_learning_rate(report.learning_rate);
  if (shards_) shards_->commit_copied();
  log_->info("started in view " + std::to_string(view()) + " with the state after " +
             counted(report.steps, "step"));
  enter_view();  // one that has come meanwhile
}

void Engine::resume(const std::vector<uint64_t>& calls) {
  for (uint32_t channel = 0; channel < kChannels; ++channel) {
    channels_[channel].next_call = calls[channel];
    mesh_->operations.skip_to(call_number(channel, calls[channel]));
  }
  end_recovery();
}

// ---- the last step

// The others have completed it after about a round trip. If one of them is lost before, that takes until the
// head knows of the loss, and the others have agreed on where they stand and have the step.
void Engine::await_last_step(transport::Time deadline, std::function<void()> then) {
  if (!mesh_ || !options_.views_change || !started_ || next_step_ == 0 || !failure_.ok() || !torn_.ok())
    return then();
  last_step_ = LastStep{.deadline = deadline, .then = std::move(then)};
  limit_wait_for_last_step();
  if (last_step_ && !recovering_) ask_for_last_step();
}

void Engine::hasten_last_step(transport::Time deadline) {
  if (!last_step_ || deadline >= last_step_->deadline) return;
  last_step_->deadline = deadline;
  limit_wait_for_last_step();
}

// Ends the wait if its time is over, else sets the timer. A change of the view has a deadline of its own.
void Engine::limit_wait_for_last_step() {
  loop_.cancel(last_step_->timer);
  transport::Time due = last_step_->deadline;
  if (last_step_->asked != transport::Time{})
    due = std::min(due, verdict_due_(last_step_->asked) + options_.step.lease);
  if (due == transport::kNever) return;
  if (due > loop_.now()) {  // it becomes later while the head is lost
    last_step_->timer = loop_.schedule(due, [this, alive = std::weak_ptr(alive_)] {
      if (!alive.expired() && last_step_) limit_wait_for_last_step();
    });
    return;
  }
  log_->warning("dsgd_close does not know that all others have completed step " +
                std::to_string(next_step_ - 1) + "; if one is lost now, they may repeat it");
  end_wait_for_last_step();
}

// Again in each view that comes before all have answered, and when a worker has left.
void Engine::ask_for_last_step() {
  last_step_->asked = loop_.now();
  limit_wait_for_last_step();
  if (!last_step_) return;  // the time is over
  last_step_->missing.clear();
  for (int32_t other = 0; other < size(); ++other) {
    if (other != rank() && !mesh_->peers.has_left(other)) last_step_->missing.push_back(other);
  }
  const auto answered = [this](int32_t other) {
    if (!last_step_) return;
    std::erase(last_step_->missing, other);
    if (last_step_->missing.empty()) end_wait_for_last_step();
  };
  const std::vector<int32_t> asked = last_step_->missing;
  if (asked.empty()) return answered(-1);
  for (int32_t other : asked) {
    mesh_->peers.call(other, transport::HasCompleted{view(), rank(), next_step_}, transport::kNever,
                      in_view([this, other, answered](const Result<transport::Message>& answer) {
                        if (answer.ok() || mesh_->peers.has_left(other)) answered(other);
                      }));
  }
}

void Engine::end_wait_for_last_step() {
  if (!last_step_) return;
  loop_.cancel(last_step_->timer);
  std::exchange(last_step_, std::nullopt)->then();
}

void Engine::on_completion_asked(uint64_t steps, transport::Responder respond) {
  completions_.emplace_back(steps, std::move(respond));
  answer_completed(failure_);
}

void Engine::answer_completed(const Status& status) {
  auto asked = std::exchange(completions_, {});
  for (auto& [steps, respond] : asked) {
    if (!status.ok()) {
      respond(status);
    } else if (steps <= next_step_) {
      respond(transport::Message(transport::Empty{}));
    } else {
      completions_.emplace_back(steps, std::move(respond));
    }
  }
}

void Engine::end_recovery() {
  recovering_ = false;
  if (last_step_) ask_for_last_step();
  start_next_checkpoint();
}

void Engine::resume_step() {
  if (!step_.running()) return;
  const uint64_t call = next_call();
  ++channels_[0].next_call;
  step_.resume(call);
}

// Some workers have not completed dsgd_start, so no worker has completed a step. All workers repeat the
// start, with the values of a worker that has completed it. A host whose dsgd_start has returned does not
// notice.
void Engine::start_again(const std::vector<ViewReport>& reports) {
  const auto first =
      std::find_if(reports.begin(), reports.end(), [](const ViewReport& report) { return report.started; });
  start_source_ = first == reports.end() ? 0 : static_cast<int32_t>(first - reports.begin());
  if (started_) {
    recovering_ = true;
    starting_ = Starting{step_.strategy(), {}, [this](const Status& status) {
                           if (!status.ok()) return fail(status, true);
                           end_recovery();
                           resume_step();
                         }};
  }
  if (starting_) begin_start();  // else when the host calls it
}

}  // namespace dsgd

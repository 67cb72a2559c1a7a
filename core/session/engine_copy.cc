// Copies of the state in a new view: of the values and the optimizer's state of the worker that has completed
// most steps, to workers that are a step behind, and to learners.
//
// A worker that is behind could instead fetch the sums of the step. But then every worker would have to keep
// them until the header of the next step is complete: twice the buffers, or one more round trip in each step.
// Losses are rare, so it copies values and optimizer state.

#include <algorithm>
#include <cstring>

#include "core/base/join.h"
#include "core/base/text.h"
#include "core/session/engine.h"
#include "core/session/view_decision.h"

namespace dsgd {

using transport::ViewReport;

// The values and the optimizer's state that are broadcast, by parameter: at the source its own, elsewhere
// memory for them. Null or empty where nothing is copied.
struct Engine::StateCopy {
  HostValues values;
  OptimizerState state;
  std::vector<uint64_t> updates;
};

// The copies of the state in this view, and the work that follows.
struct Engine::Copying {
  std::shared_ptr<Call> call;
  int32_t source = 0;
  std::vector<int32_t> learners;  // that copy
  // Each with the source.
  std::shared_ptr<const Group> group;     // all workers that copy
  std::shared_ptr<const Group> learning;  // the learners
  std::shared_ptr<const Group> whole;     // those that copy trained parameters and their state, too
  bool fetches = false;                   // the learners fetch trained parameters and state (engine_join.cc)
  std::function<void()> then;
};

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
    } else {  // recovery ends in a later view
      agreed_ = true;
      last_step_.ask(mesh_->peers, next_step_);
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
  if (!copying->fetches) giver_.drop_all(Status(Code::kState, "the state is copied"));
  std::vector<int32_t> whole = decision.copiers;
  if (copying->fetches)
    std::erase_if(whole, [&](int32_t one) { return reports[static_cast<size_t>(one)].learner; });
  copying->whole = with_source(std::move(whole));
  copying->then = [this, call, held = std::move(held), placed] { place_state(call, held, placed); };
  const bool is_source = rank() == decision.source;
  if (!decision.different.empty()) {
    const auto informed = with_source(decision.different);
    if (informed->own_index < 0) {
      ++call->next_operation;  // the broadcast of others
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
  is_source ? give_state(copying) : receive_state(copying, reports);
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
  calls_.broadcast(copying->call, Kind::kView, DType::kUint8, *theirs, copying->source, "dsgd_start",
                   in_view([this, source, theirs](const Status& status) {
                     if (!status.ok()) return fail(status, true);
                     if (!source)
                       fail_newcomer(first_difference(text_of(*theirs), present_signature(), rank()));
                   }),
                   std::move(informed));
}

void Engine::give_state(const std::shared_ptr<Copying>& copying) {
  auto values = host_values(true);
  if (!values.ok()) return fail(values.status(), true);
  const auto copy = std::make_shared<StateCopy>();
  copy->values = std::move(values).value();
  copy->updates = model_.updates;
  const transport::Time deadline = copying->call->deadline;
  step_.optimizer_state().copy(
      false, deadline, in_view([this, deadline, copying, copy](const Status& fetched) {
        if (!fetched.ok()) return fail(fetched, true);
        if (step_.updates_at_owner()) {
          copy->state.resize(model_.parameters.size());  // owners get theirs by place_state()
        } else {
          copy->state = step_.optimizer_state().on_host();
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
  for (int32_t learner : copying->learners) objects_.give(learner, given);
  given({});
}

void Engine::receive_state(const std::shared_ptr<Copying>& copying, const std::vector<ViewReport>& reports) {
  const ViewReport& report = reports[static_cast<size_t>(copying->source)];
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
    const size_t states = has_state ? model_.states_of(parameter) : 0;
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
  broadcast_state(copying, copy, [this, copying, copy, reports, fetches] {
    const ViewReport& report = reports[static_cast<size_t>(copying->source)];
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
                              ? model_.states_of(parameter)
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
      ++copying->call->next_operation;  // the broadcast of others
      all({});
      continue;
    }
    calls_.broadcast(copying->call, Kind::kView, tensor.dtype,
                     std::span(static_cast<std::byte*>(tensor.data), tensor.nbytes), copying->source,
                     "the change to view " + std::to_string(view()), all, std::move(tensor.group));
  }
}

// The copy is whole. A change of the view waits until all of it is in the replicas.
void Engine::apply_copy(const std::shared_ptr<Copying>& copying, std::shared_ptr<StateCopy> copy,
                        const ViewReport& report) {
  applying_ = true;
  giver_.drop_all(Status(Code::kState, "this worker has copied a step"));
  if (step_.updates_at_owner() && !learner_) step_.optimizer_state().advance(copy->updates);
  OptimizerState& state = step_.optimizer_state().on_host();
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
  step_.optimizer_state().copy(true, deadline, [this, deadline, copy, applied](const Status& copied) {
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

}  // namespace dsgd

#include "core/session/state_copier.h"

#include <algorithm>
#include <cstring>

#include "core/base/join.h"
#include "core/base/text.h"

namespace dsgd {

using transport::ViewReport;

// The values and the optimizer's state that are broadcast, by parameter: at the source its own, elsewhere
// memory for them. Null or empty where nothing is copied.
struct StateCopier::StateCopy {
  HostValues values;
  OptimizerState state;
  std::vector<uint64_t> updates;
};

// The copies of the state in this view, and the work that follows.
struct StateCopier::Transfer {
  std::shared_ptr<Call> call;
  int32_t source = 0;
  std::vector<int32_t> learners;  // that copy
  // Each group includes the source.
  std::shared_ptr<const Group> group;     // all workers that copy
  std::shared_ptr<const Group> learning;  // the learners
  std::shared_ptr<const Group> whole;     // those that copy trained parameters and their state, too
  std::function<void()> then;
};

void StateCopier::copy(const std::shared_ptr<Call>& call, const ViewDecision& decision,
                       const std::vector<ViewReport>& reports, std::function<void()> then) {
  const ViewReport& source = reports[static_cast<size_t>(decision.source)];
  const auto with_source = [&](std::vector<int32_t> ranks) {
    ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), decision.source), decision.source);
    return std::make_shared<const Group>(std::move(ranks), state_.rank());
  };
  const auto transfer = std::make_shared<Transfer>();
  transfer->call = call;
  transfer->source = decision.source;
  transfer->learners = decision.learners;
  transfer->group = with_source(decision.copiers);
  transfer->learning = with_source(decision.learners);
  std::vector<int32_t> whole = decision.copiers;
  std::erase_if(whole, [&](int32_t one) { return reports[static_cast<size_t>(one)].learner; });
  transfer->whole = with_source(std::move(whole));
  transfer->then = std::move(then);
  const bool is_source = state_.rank() == decision.source;
  if (!decision.different.empty()) {
    const auto informed = with_source(decision.different);
    if (informed->own_index < 0) {
      ++call->next_operation;  // skips the number of a broadcast of other workers
    } else {
      name_difference(transfer, informed, source);
      if (!is_source) return;
    }
  }
  if (transfer->group->size() == 1 || transfer->group->own_index < 0) return transfer->then();
  if (!is_source && !state_.learner && !state_.step.running()) {
    return state_.fail(
        Status(Code::kInternal, state_.mesh->members().name(decision.source) + " has completed step " +
                                    std::to_string(state_.next_step) + ", which this worker has not begun"),
        true);
  }
  is_source ? give(transfer) : receive(transfer, reports);
}

// A learner with other settings fails, and the others go on in a view without it.
void StateCopier::name_difference(const SharedTransfer& transfer, std::shared_ptr<const Group> informed,
                                  const ViewReport& report) {
  const bool source = state_.rank() == transfer->source;
  const auto theirs = std::make_shared<std::vector<std::byte>>();
  if (source) {
    *theirs = bytes_of(start_.present_signature());
  } else if (report.signature_length <= Object::kLargest) {
    theirs->resize(report.signature_length);
  }
  state_.calls.broadcast(
      transfer->call, Kind::kView, DType::kUint8, *theirs, transfer->source, "dsgd_start",
      state_.in_view([this, source, theirs](const Status& status) {
        if (!status.ok()) return state_.fail(status, true);
        if (!source)
          state_.fail_learner(first_difference(text_of(*theirs), start_.present_signature(), state_.rank()));
      }),
      std::move(informed));
}

void StateCopier::give(const SharedTransfer& transfer) {
  const bool trained = transfer->whole->size() > 1;
  auto values = state_.host_values(true, trained);
  if (!values.ok()) return state_.fail(values.status(), true);
  const auto copy = std::make_shared<StateCopy>();
  copy->values = std::move(values).value();
  copy->updates = state_.model.updates;
  copy->state.resize(state_.model.parameters.size());
  const transport::Time deadline = transfer->call->deadline;
  const auto give_all = state_.in_view([this, deadline, transfer, copy](const Status& fetched) {
    if (!fetched.ok()) return state_.fail(fetched, true);
    // Owners get theirs by StatePlacement::place().
    if (copies_state(*transfer)) copy->state = state_.step.optimizer_state().on_host();
    state_.step.when_queues_done(deadline, state_.in_view([this, transfer, copy](const Status& reached) {
      if (!reached.ok()) return state_.fail(reached, true);
      give_objects(transfer,
                   state_.in_view([this, transfer, copy] { broadcast(transfer, copy, transfer->then); }));
    }));
  });
  copies_state(*transfer) ? state_.step.optimizer_state().fetch_to_host(deadline, give_all)
                          : give_all(Status());
}

// Whether optimizer state is broadcast.
bool StateCopier::copies_state(const Transfer& transfer) const {
  return transfer.whole->size() > 1 && !state_.step.updates_at_owner();
}

// Runs before the broadcast of the state. A learner that has the state is no learner in the next view, and
// would get no objects there.
void StateCopier::give_objects(const SharedTransfer& transfer, std::function<void()> then) {
  const auto given = join(transfer->learners.size() + 1, [then](const Status&) { then(); });
  for (int32_t learner : transfer->learners) objects_.give(learner, given);
  given({});
}

void StateCopier::receive(const SharedTransfer& transfer, const std::vector<ViewReport>& reports) {
  const ViewReport& report = reports[static_cast<size_t>(transfer->source)];
  const bool learns = state_.learner;
  if (learns) {
    state_.strategy_version = report.strategy_version;
    auto plan = state_.plan_of(start_.strategy());
    if (!plan.ok()) return state_.fail(plan.status(), true);
    if (Status applied = state_.apply_plan(std::move(plan).value()); !applied.ok()) return;
  }
  const auto copy = std::make_shared<StateCopy>();
  device::Device& device = *state_.step.contexts().back().device;
  copy->updates.resize(state_.model.parameters.size());
  copy->values.resize(state_.model.parameters.size());
  copy->state.resize(state_.model.parameters.size());
  for (size_t p = 0; p < state_.model.parameters.size(); ++p) {
    const Parameter& parameter = *state_.model.parameters[p];
    if (parameter.trained == learns) continue;
    Status status = device.allocate_staging(parameter.nbytes()).into(&copy->values[p]);
    const bool has_state = parameter.trained && !state_.step.updates_at_owner();
    const size_t states = has_state ? state_.model.states_of(parameter) : 0;
    for (size_t s = 0; s < states && status.ok(); ++s)
      status = device.allocate_staging(parameter.state_nbytes()).into(&copy->state[p].emplace_back());
    if (!status.ok()) return state_.fail(status, true);
  }
  if (!learns) {
    state_.log->info("copies the state after " + counted(report.steps, "step") + " from " +
                     state_.mesh->members().name(transfer->source));
  }
  broadcast(transfer, copy, [this, transfer, copy, reports, learns] {
    const ViewReport& report = reports[static_cast<size_t>(transfer->source)];
    const auto received = state_.in_view([this, transfer, copy, report] { apply(transfer, copy, report); });
    learns ? fetcher_->fetch_rest(reports, report, transfer->call->deadline, received) : received();
  });
}

// Only learners take untrained parameters, which differ between workers until their next `sync`.
void StateCopier::broadcast(const SharedTransfer& transfer, SharedCopy copy, std::function<void()> then) {
  struct Tensor {
    void* data;
    size_t nbytes;
    DType dtype;
    std::shared_ptr<const Group> group;
  };
  std::vector<Tensor> tensors = {
      {copy->updates.data(), copy->updates.size() * sizeof(uint64_t), DType::kInt64, transfer->group}};
  for (size_t p = 0; p < state_.model.parameters.size(); ++p) {
    const Parameter& parameter = *state_.model.parameters[p];
    if (parameter.trained ? transfer->whole->size() > 1 : !transfer->learners.empty())
      tensors.push_back({copy->values[p].get(), parameter.nbytes(), parameter.dtype,
                         parameter.trained ? transfer->whole : transfer->learning});
    const size_t states =
        parameter.trained && copies_state(*transfer) ? state_.model.states_of(parameter) : 0;
    for (size_t s = 0; s < states; ++s) {
      const bool here = s < copy->state[p].size();
      tensors.push_back({here ? copy->state[p][s].get() : nullptr, here ? parameter.state_nbytes() : 0,
                         wide(parameter.dtype), transfer->whole});
    }
  }
  const auto all = join(tensors.size(), state_.in_view([this, copy, then](const Status& status) {
    status.ok() ? then() : state_.fail(status, true);
  }));
  for (Tensor& tensor : tensors) {
    if (tensor.group->own_index < 0) {
      ++transfer->call->next_operation;  // skips the number of a broadcast of other workers
      all({});
      continue;
    }
    state_.calls.broadcast(transfer->call, Kind::kView, tensor.dtype,
                           std::span(static_cast<std::byte*>(tensor.data), tensor.nbytes), transfer->source,
                           state_.view_change_name(), all, std::move(tensor.group));
  }
}

// The copy is whole. A change of the view waits until all of it is in the replicas.
void StateCopier::apply(const SharedTransfer& transfer, SharedCopy copy, const ViewReport& report) {
  state_.applying = true;
  state_.giver.drop_all(Status(Code::kState, "this worker has copied a step"));
  if (state_.step.updates_at_owner() && !state_.learner) state_.step.optimizer_state().advance(copy->updates);
  OptimizerState& state = state_.step.optimizer_state().on_host();
  if (!state_.learner) state.resize(state_.model.parameters.size());
  for (size_t p = 0; p < state.size(); ++p) {
    for (size_t s = 0; s < copy->state[p].size(); ++s) {
      if (s == state[p].size()) {
        state[p].push_back(copy->state[p][s]);
      } else {
        std::memcpy(state[p][s].get(), copy->state[p][s].get(), state_.model.parameters[p]->state_nbytes());
      }
    }
  }
  state_.model.updates = copy->updates;
  state_.model.loss_scale.restore(report.loss_scale, static_cast<int>(report.loss_scale_age));
  const auto applied = [this, report, transfer, copy](const Status& status) {
    if (!state_.failure.ok()) return;
    if (!status.ok()) return state_.fail(status, true);
    state_.applying = false;
    const uint64_t entered = state_.view();
    if (state_.learner) {
      end_start(report);
    } else {
      end_step(report);  // enters a view that has come meanwhile
    }
    if (entered == state_.view()) transfer->then();
  };
  const transport::Time deadline = transfer->call->deadline;
  const auto spread = [this, deadline, copy, applied](const Status& copied) {
    const Status enqueued = copied.ok() ? state_.spread_values(copy->values) : copied;
    enqueued.ok() ? state_.step.when_queues_done(deadline, applied) : applied(enqueued);
  };
  // The optimizer's state that a learner has fetched is on its devices already.
  state_.learner ? spread({}) : state_.step.optimizer_state().spread_to_devices(deadline, spread);
}

void StateCopier::end_step(const ViewReport& report) {
  if (state_.shards) state_.shards->commit_copied();
  StepResult result{
      report.outcome, static_cast<int64_t>(state_.next_step), {}};  // in the view in which it was made
  if (result.nonfinite > 0)
    result.nonfinite_text = counted(static_cast<size_t>(result.nonfinite), "element") +
                            ", the first on rank " + std::to_string(result.nonfinite_rank);
  state_.step.end_suspended(result);
}

void StateCopier::end_start(const ViewReport& report) {
  state_.started = true;
  state_.next_step = report.steps;
  state_.joined_at = report.steps;
  state_.last_result = StepResult{report.outcome, static_cast<int64_t>(state_.next_step) - 1, {}};
  state_.model.optimizer->set_learning_rate(report.learning_rate);
  if (state_.shards) state_.shards->commit_copied();
  state_.log->info("started in view " + std::to_string(state_.view()) + " with the state after " +
                   counted(report.steps, "step"));
  state_.change_applied();
}

}  // namespace dsgd

#include "core/session/strategy_change.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "core/base/join.h"
#include "core/base/once.h"
#include "core/base/text.h"
#include "core/collectives/direct.h"
#include "core/session/signature.h"
#include "transport/schema/codec.h"

namespace dsgd {

using transport::BulkHeader;

namespace {

// Returns an error that names the first worker whose plan differs from rank 0's; OK: all plans are equal.
Status disagreement(const Calls::Parts& all) {
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return Status(Code::kMismatch, "dsgd_strategy_set: workers disagree: rank 0 asks for '" +
                                       text_of(all[0]) + "', rank " + std::to_string(rank) + " for '" +
                                       text_of(all[rank]) + "'; give the same arguments everywhere")
        .with_rank(static_cast<int32_t>(rank))
        .with_operation("dsgd_strategy_set");
  }
  return {};
}

}  // namespace

Status StrategyChange::replan() {
  if (!state_.started) return {};
  auto plan = state_.plan_of(state_.step.strategy());
  if (!plan.ok()) return plan.status();
  // The state of a range stays where it is, so its owner must, too.
  std::map<std::pair<uint32_t, size_t>, int32_t> owners;
  for (const Bucket& bucket : state_.step.plan()) {
    for (const Piece& piece : bucket.pieces) owners[{piece.parameter, piece.begin}] = piece.owner;
  }
  for (const Bucket& bucket : plan.value().buckets) {
    for (const Piece& piece : bucket.pieces) {
      const auto before = owners.find({piece.parameter, piece.begin});
      if (!state_.step.updates_at_owner() || before == owners.end() || before->second == piece.owner)
        continue;
      return Status(Code::kInvalidArgument,
                    "strategy '" + state_.step.strategy().name() + "' gives elements " +
                        std::to_string(piece.begin) + " to " + std::to_string(piece.begin + piece.count) +
                        " of parameter '" + state_.model.parameters[piece.parameter]->name + "' to rank " +
                        std::to_string(piece.owner) + ", and gave them to rank " +
                        std::to_string(before->second) +
                        " before; the function `owner` of a plug-in must return the same rank for the same "
                        "arguments");
    }
  }
  return state_.apply_plan(std::move(plan).value());
}

void StrategyChange::begin(const StrategySpec& strategy, Done done, const CallOptions& options) {
  if (!state_.torn.ok()) return done(state_.torn);
  if (Status status = state_.admit_call(); !status.ok()) return done(status);
  done = state_.begin_change(std::move(done));
  const std::shared_ptr<Call> call = state_.calls.begin(&done, options);
  // A prepared change may end twice: at its deadline (defer_to_reports) and by its own end.
  done = once(std::move(done));
  auto planned = state_.plan_of(strategy);
  const std::string mine = describe_plan(planned, strategy);
  const Status unusable = planned.status();
  const auto plan = std::make_shared<const Plan>(unusable.ok() ? std::move(planned).value() : Plan());
  if (!state_.mesh)
    return unusable.ok() ? replace_plan(*call, call->deadline, plan, std::move(done)) : done(unusable);
  const PreparedChange change = {
      *call,
      [this, call, strategy, done](const Done& applied) { apply_in_view(call, strategy, done, applied); },
      done};
  // State that has to move is not here yet.
  if (unusable.ok() && !state_.step.updates_at_owner()) state_.prepare(change);
  state_.calls.exchange(
      call, Kind::kStrategy, 0, bytes_of(mine),
      [this, call, plan, unusable, done, change](const Status& status, const Calls::Parts& all) {
        if (state_.defer_to_reports(*call)) return;
        if (!status.ok()) return done(status);
        if (Status differs = disagreement(all); !differs.ok()) return done(differs);
        if (!unusable.ok()) return done(unusable);
        move_state(call, [this, call, plan, done, change](const Status& moved) {
          if (!moved.ok()) return done(moved);
          agree_on_moved_state(call, change, [this, call, plan, done](const Status& agreed) {
            agreed.ok() ? replace_plan(*call, call->deadline, plan, done) : done(agreed);
          });
        });
      });
}

// Where views change, no worker gives up its state before all have got theirs.
void StrategyChange::agree_on_moved_state(const std::shared_ptr<Call>& call, const PreparedChange& change,
                                          Done agreed) {
  if (!state_.options.views_change || !state_.step.updates_at_owner()) return agreed({});
  state_.prepare(change);
  state_.calls.exchange(call, Kind::kStrategy, 1, {},
                        [this, call, agreed = std::move(agreed)](const Status& status, const Calls::Parts&) {
                          if (!state_.defer_to_reports(*call)) agreed(status);
                        });
}

// Another worker has made the change in the earlier view.
void StrategyChange::apply_in_view(const std::shared_ptr<Call>& call, const StrategySpec& strategy,
                                   const Done& done, const Done& applied) {
  auto planned = state_.plan_of(strategy);
  const auto end = [this, done, applied](const Status& status) {
    placement_.note_all_held();  // no step has been made since
    done(status);
    applied(status);
  };
  if (!planned.ok()) return end(planned.status());
  replace_plan(*call, state_.calls.deadline(), std::make_shared<const Plan>(std::move(planned).value()), end);
}

// A change of the view waits until the new plan holds.
void StrategyChange::replace_plan(const Call& call, transport::Time deadline,
                                  std::shared_ptr<const Plan> plan, Done replaced) {
  ++state_.strategy_version;
  state_.applied_change = call.number;
  state_.giver.drop_all(Status(StateGiver::kNotNow, "it is changing the strategy"));
  state_.applying = true;
  const Done done = [this, replaced = std::move(replaced)](const Status& status) {
    state_.applying = false;
    replaced(status);
    state_.change_applied();
  };
  state_.step.optimizer_state().fetch_to_host(deadline, [this, deadline, plan, done](const Status& fetched) {
    if (!fetched.ok()) return done(fetched);
    if (Status applied = state_.apply_plan(*plan); !applied.ok()) return done(applied);
    placement_.note_held();
    state_.step.optimizer_state().spread_to_devices(deadline, [this, plan, done](const Status& spread) {
      if (spread.ok())
        state_.log->info("strategy is " + plan->strategy.describe() + " from step " +
                         std::to_string(state_.next_step) + " on");
      done(spread);
    });
  });
}

// Optimizer state goes from the owners of its ranges to every worker.
void StrategyChange::move_state(const std::shared_ptr<Call>& call, Done done) {
  if (!state_.step.updates_at_owner()) return done({});
  // A range has the same owner in any plan of the strategy.
  auto planned = state_.plan_of(state_.step.strategy(), true);
  if (!planned.ok()) return done(planned.status());
  const auto plan = std::make_shared<const Plan>(std::move(planned).value());
  std::vector<std::pair<size_t, size_t>> gathered;  // bucket, tensor
  for (size_t bucket = 0; bucket < plan->buckets.size(); ++bucket) {
    size_t tensors = 0;
    for (const Piece& piece : plan->buckets[bucket].pieces) {
      tensors = std::max(tensors, state_.model.states_of(*state_.model.parameters[piece.parameter]));
    }
    for (size_t tensor = 0; tensor < tensors; ++tensor) gathered.emplace_back(bucket, tensor);
  }
  const auto moved = join(gathered.size() + 1, std::move(done));
  for (const auto& [bucket, tensor] : gathered) gather_state(call, plan, bucket, tensor, moved);
  moved({});
}

// Gathers one of the optimizer's tensors, for the elements of one bucket.
void StrategyChange::gather_state(const std::shared_ptr<Call>& call, std::shared_ptr<const Plan> plan,
                                  size_t index, size_t tensor, Done done) {
  const Bucket& bucket = plan->buckets[index];
  const size_t element = dtype_size(bucket.dtype);
  auto buffer = std::make_shared<std::vector<std::byte>>(bucket.elements * element);
  auto place = [this, element, tensor](const Piece& piece) -> std::byte* {
    const auto& state = state_.step.optimizer_state().on_host()[piece.parameter];
    return tensor < state.size() ? static_cast<std::byte*>(state[tensor].get()) + piece.begin * element
                                 : nullptr;
  };
  for (const Piece& piece : bucket.pieces) {
    if (piece.owner == state_.rank() && place(piece)) {
      std::memcpy(buffer->data() + piece.position * element, place(piece), piece.count * element);
    }
  }
  state_.calls.schedule(
      call,
      [this, buffer, element, plan, index](uint64_t operation, Done ended) {
        const Bucket& gathered = plan->buckets[index];
        BulkHeader header =
            shape_of(operation, Kind::kStrategy, gathered.dtype, Algorithm::kDirect, gathered.elements);
        DirectPlan direct;
        direct.slices = slices_between(gathered.bounds);
        direct.reduce = false;
        direct.element = direct.result_element = element;
        direct.data = direct.result = buffer->data();
        header.tag = Direct::tag(state_.mesh->operations, direct);
        auto task =
            std::make_unique<Direct>(state_.mesh->operations, header, std::move(direct), false, ended);
        task->rename("dsgd_strategy_set");
        return task;
      },
      [this, buffer, element, plan, index, place, done](const Status& status) {
        if (status.ok()) {
          for (const Piece& piece : plan->buckets[index].pieces) {
            if (piece.owner != state_.rank() && place(piece)) {
              std::memcpy(place(piece), buffer->data() + piece.position * element, piece.count * element);
            }
          }
        }
        done(status);
      });
}

}  // namespace dsgd

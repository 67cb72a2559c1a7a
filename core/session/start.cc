#include "core/session/start.h"

#include <algorithm>
#include <utility>

#include "core/base/join.h"
#include "core/base/text.h"
#include "core/session/signature.h"
#include "transport/schema/codec.h"

namespace dsgd {

void Start::end(const Status& status) {
  if (pending_) std::exchange(pending_, std::nullopt)->done(status);
}

std::string Start::present_signature() const {
  const StrategySpec& strategy = state_.started ? state_.step.strategy() : pending_->strategy;
  return state_.signature(describe_plan(state_.plan_of(strategy), strategy), false);
}

void Start::run() {
  const StrategySpec strategy = pending_->strategy;
  const uint64_t number = pending_->call = state_.calls.take();
  const auto call = state_.calls.make(number, pending_->options);
  const Done done = [this, number, entered = state_.view()](const Status& status) {
    if (state_.phase == ViewPhase::kEntering || entered != state_.view() || !pending_) return;
    if (state_.mesh) state_.mesh->operations.end_call(number, status);
    end(status);
  };
  auto planned = state_.plan_of(strategy);
  Own mine;
  mine.signature = state_.signature(describe_plan(planned, strategy), true);
  // Reported after the exchange, since only this worker's plug-in may fail.
  mine.unusable = planned.status();
  if (!state_.mesh && !mine.unusable.ok()) return done(mine.unusable);
  mine.plan = std::make_shared<const Plan>(planned.ok() ? std::move(planned).value() : Plan());
  const uint32_t replicas = static_cast<uint32_t>(state_.model.replicas.size());
  const uint32_t gpus = static_cast<uint32_t>(teams_.gpus().size());
  if (!state_.mesh) {
    state_.step.set_replicas(replicas);
    return form_teams(call, mine.plan, {gpus}, done);
  }
  const transport::StartHeader header{digest_of(mine.signature), mine.signature.size(), replicas, gpus};
  state_.calls.exchange(
      call, Kind::kStart, 0, transport::encode(header),
      [this, call, mine = std::move(mine), done](const Status& status, const Calls::Parts& all) {
        status.ok() ? on_headers(call, mine, all, done) : done(status);
      });
}

void Start::on_headers(const SharedCall& call, const Own& mine, const Calls::Parts& encoded,
                       const Done& done) {
  bool equal = true;
  std::vector<uint32_t> gpus_of;
  transport::StartHeader first;
  uint32_t replicas = 0;
  for (size_t rank = 0; rank < encoded.size(); ++rank) {
    auto theirs = transport::decode_start_header(encoded[rank]);
    if (!theirs.ok()) return done(state_.other_version(static_cast<int32_t>(rank), theirs.status()));
    if (rank == 0) first = theirs.value();
    equal =
        equal && theirs->signature == first.signature && theirs->signature_length == first.signature_length;
    replicas += theirs->replicas;
    gpus_of.push_back(theirs->gpus);
  }
  state_.step.set_replicas(replicas);
  if (!equal) return compare_signatures(call, mine.signature, first.signature_length, done);
  if (!mine.unusable.ok()) return done(mine.unusable);
  form_teams(call, mine.plan, std::move(gpus_of), done);
}

// The buckets of teams are larger, so the plan is made again where there are teams. Goes on with
// give_values().
void Start::form_teams(const SharedCall& call, std::shared_ptr<const Plan> plan,
                       std::vector<uint32_t> gpus_of, const Done& done) {
  teams_.form(call, plan->strategy, std::move(gpus_of), [this, call, plan, done](const Status& status) {
    if (!status.ok()) return done(status);
    if (!state_.step.reduces_by_teams(plan->strategy)) return give_values(call, plan, done);
    auto of_teams = state_.plan_of(plan->strategy);
    if (of_teams.ok())
      return give_values(call, std::make_shared<const Plan>(std::move(of_teams).value()), done);
    state_.fail(of_teams.status(), true);
    done(of_teams.status());
  });
}

// Sends rank 0's signature to all workers. Each answers with its first difference; all report that of the
// lowest rank. If only workers that have joined later differ, these fail, and the others start again in a
// view without them.
void Start::compare_signatures(const SharedCall& call, std::string mine, size_t length, Done done) {
  if (length > Object::kLargest) {
    return done(
        Status(Code::kMismatch,
               "dsgd_start: rank 0 runs another version of dsgd; install the same version on all workers"));
  }
  auto theirs = std::make_shared<std::vector<std::byte>>(length);
  if (state_.rank() == 0) *theirs = bytes_of(mine);
  state_.calls.broadcast(
      call, Kind::kStart, DType::kUint8, *theirs, 0, "dsgd_start",
      [this, call, mine, theirs, done](const Status& status) {
        if (!status.ok()) return done(status);
        const std::string difference = first_difference(text_of(*theirs), mine, state_.rank());
        state_.calls.exchange(call, Kind::kStart, 1, bytes_of(difference),
                              [this, done](const Status& status, const Calls::Parts& differences) {
                                status.ok() ? on_differences(differences, done) : done(status);
                              });
      });
}

// `differences`: by rank, the first from rank 0; empty: there is none. A worker that has joined later fails
// alone if it differs.
void Start::on_differences(const Calls::Parts& differences, const Done& done) {
  // If all others differ from rank 0, then rank 0 is the one that differs.
  const bool all_differ =
      differences.size() > 2 && std::none_of(differences.begin() + 1, differences.end(),
                                             [](const auto& difference) { return difference.empty(); });
  bool learner_differs = false;
  for (size_t r = 0; r < differences.size(); ++r) {
    if (differences[r].empty()) continue;
    if (!state_.has_joined_later(static_cast<int32_t>(r)))
      return done(signature_mismatch(text_of(differences[r]), all_differ ? 0 : static_cast<int32_t>(r)));
    learner_differs = true;
  }
  if (!learner_differs)
    return done(Status(Code::kInternal, "dsgd_start: signatures differ but no line does"));
  const auto& own = differences[static_cast<size_t>(state_.rank())];
  if (!own.empty()) state_.fail_learner(text_of(own));
}

void Start::give_values(const SharedCall& call, std::shared_ptr<const Plan> plan, Done done) {
  if (!state_.started) {
    auto contexts = make_contexts(state_.model, state_.options.views_change);
    if (!contexts.ok()) return done(contexts.status());
    state_.step.set_contexts(std::move(contexts).value());
  }
  // At the source this only enqueues the copies of its values; when_queues_done() below waits for them.
  auto made = state_.host_values(state_.rank() == source_);
  if (!made.ok()) return done(made.status());
  const auto values = std::make_shared<const HostValues>(std::move(made).value());
  auto end_start = [this, plan, done](const Status& status) {
    if (!status.ok() || state_.started) return done(status);
    if (Status applied = state_.apply_plan(*plan); !applied.ok()) return done(applied);
    state_.started = true;
    placement_.note_held();
    state_.log->info("started: " + counted(state_.model.parameters.size(), "parameter") + " in " +
                     counted(state_.step.plan().size(), "bucket") + ", strategy " +
                     plan->strategy.describe() + ", " + std::to_string(state_.step.buffer_bytes()) +
                     " bytes of buffers");
    done({});
  };
  auto take_values = [this, call, values, end_start](const Status& status) {
    if (!status.ok() || state_.started) return end_start(status);  // it holds these values already
    if (Status spread = state_.spread_values(*values); !spread.ok()) return end_start(spread);
    state_.step.when_queues_done(
        call->deadline, state_.in_view([values, end_start](const Status& reached) { end_start(reached); }));
  };
  state_.step.when_queues_done(
      call->deadline, state_.in_view([this, call, values, take_values](const Status& status) {
        if (!status.ok()) return take_values(status);
        const auto one_given = join(state_.mesh ? state_.model.parameters.size() + 1 : 1, take_values);
        for (size_t p = 0; state_.mesh && p < state_.model.parameters.size(); ++p) {
          const Parameter& parameter = *state_.model.parameters[p];
          const std::span<std::byte> data(static_cast<std::byte*>((*values)[p].get()), parameter.nbytes());
          state_.calls.broadcast(call, Kind::kStart, parameter.dtype, data, source_, "dsgd_start", one_given);
        }
        one_given({});
      }));
}

}  // namespace dsgd

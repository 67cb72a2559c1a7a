// Begins the start of this worker. If it joins a running job, it first fetches the state of the others
// (state_fetcher.h). Also answers workers that ask for this worker's state.

#include <utility>

#include "core/base/describe.h"
#include "core/session/engine.h"
#include "core/session/signature.h"

namespace dsgd {

void Engine::start(const StrategySpec& strategy, Done done, const CallOptions& options) {
  if (!state_.failure.ok()) return done(state_.failure);
  const auto report = [this] { return state_.wait_report(start_.call()); };
  start_.begin(strategy, state_.stalls.watch(report, std::move(done)), options);
  if (outside_view()) {  // what an earlier dsgd_start has enqueued ends first
    return state_.step.when_devices_done(waiter_, [this](const Status& devices_done) {
      if (!state_.failure.ok()) return;
      devices_done.ok() ? learn() : fail_start(devices_done);
    });
  }
  if (!state_.recovering()) start_.run();
}

// Fetches the state of the others before this worker is in a view. If no plan can be made, enters a view: its
// other workers report the difference.
void Engine::learn() {
  auto contexts = make_contexts(state_.model, true);
  if (!contexts.ok()) return fail_start(contexts.status());
  state_.step.set_contexts(std::move(contexts).value());
  if (!fetcher_) {  // else an earlier dsgd_start has failed
    if (Status opened = open(present_view_()); !opened.ok()) return fail(opened, false);
    fetcher_ = std::make_unique<StateFetcher>(
        state_, [this] { enter_(); }, [this](const Status& why) { fail_start(why); });
  }
  if (Status followed = state_.follow_default_streams(); !followed.ok()) return fail_start(followed);
  auto plan = state_.plan_of(start_.strategy());
  if (!plan.ok()) return enter_();
  state_.step.set_replicas(static_cast<uint32_t>(state_.model.replicas.size()));
  if (Status applied = state_.apply_plan(std::move(plan).value()); !applied.ok()) return;
  fetcher_->begin(digest_of(state_.signature(start_.strategy().describe(), false)), start_.options());
}

// Ends dsgd_start once nothing more is written to the model, which the host may change then. If the host
// calls dsgd_start again, this worker begins again.
void Engine::fail_start(const Status& why) {
  if (!fetcher_) return start_.end(why);
  fetcher_->stop([this, why](const Status& stopped) {
    if (!stopped.ok() && state_.failure.ok()) fail(stopped, false);
    start_.end(why);
  });
}

void Engine::check_sources() {
  if (outside_view() && fetcher_) fetcher_->check_sources(present_view_().members);
}

void Engine::on_state_asked(const std::string& worker_id, const transport::FetchState& question,
                            transport::Responder respond) {
  constexpr Code kNotNow = StateGiver::kNotNow;
  if (!state_.failure.ok()) return respond(state_.failure);
  const transport::JoinReply& present = state_.mesh->members().view();
  const bool learner = rank_of(present.members, worker_id) < 0;  // it may name an earlier view
  if (!learner && question.view != view())
    return respond(Status(Code::kViewChanged, "the workers of the job have changed"));
  const bool awaited = present.paused;  // the others wait for the learner, and their loads have not begun
  if (learner && !awaited && (!state_.started || !state_.torn.ok()))
    return respond(
        Status(kNotNow, state_.started ? "it must load a checkpoint first" : "it has not started"));
  if (learner && !awaited && (state_.changes > 0 || state_.applying))
    return respond(Status(kNotNow, "it is loading a checkpoint or changing the strategy"));
  if (!state_.started || !state_.torn.ok() || !state_.options.views_change)
    return respond(Status(Code::kUnsupported, "this worker does not give its state while it trains"));
  if (learner && question.next == 0 &&
      question.signature != digest_of(state_.signature(state_.step.strategy().describe(), false)))
    return respond(Status(Code::kMismatch, "this worker has another model or other settings"));
  state_.giver.give(worker_id, question, !state_.step.updates_at_owner(), std::move(respond));
}

}  // namespace dsgd

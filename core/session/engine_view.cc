// Changes of the view: the workers that are left agree on where they stand, and training goes on.
//
//   enter_view     ends all work of the earlier view; the step in flight keeps its marks
//   report         sends the number of completed steps to all others, after that work has ended
//   decide         decides from all reports, alike on all workers (view_decision.h). If some workers have
//                  made a change of the strategy, or a load, and others have only prepared it, these make it
//                  now, and all report again
//   deal_samples   deals out the samples of lost workers
//   copy           a worker that is one step behind copies the state of a worker that is not
//                  (state_copier.h). A learner fetches the state that it lacks from several workers
//                  (state_fetcher.h)
//   place          where owners keep the optimizer's state, moves it to the owners of the new view
//                  (state_placement.h)
//   resume         begins the suspended step again, from the same gradients; in a paused view, which has
//                  fewer than min_workers, the step waits for a later view instead
//
// A step thus has the contributions of all workers of the earlier view, or of exactly those of the new one.
// If only one worker has completed a step, the others copy it. If that worker dies before any of them has
// copied, they repeat the step without it. So a step is final only when the header of the next one is
// complete. A loss in between begins all this again in a later view.

#include <algorithm>

#include "core/base/describe.h"
#include "core/base/while_alive.h"
#include "core/session/engine.h"
#include "core/session/signature.h"
#include "core/session/view_decision.h"
#include "transport/schema/codec.h"

namespace dsgd {

using transport::JoinReply;
using transport::ViewReport;

void Engine::change_view(const JoinReply& view, const Status& why) {
  if (!state_.failure.ok()) return;
  if (!state_.torn.ok()) return fail(torn_before(why), false);
  if (outside_view()) return enter_first_view(view, why);
  next_view_ = NextView{view, why, {}};
  enter_view();
}

void Engine::note_departure(int32_t rank, uint64_t departure_call) {
  if (next_view_) {
    next_view_->departures.emplace_back(rank, departure_call);
  } else if (state_.mesh) {
    state_.mesh->peers.note_departure(rank, departure_call);
  }
}

// The others are torn, too, and a session that is torn cannot agree on a new view.
Status Engine::torn_before(const Status& change) const {
  return Status(state_.torn.code(), "the workers of the job have changed (" + change.message() +
                                        ") before all had loaded a checkpoint: " + state_.torn.message())
      .with_rank(state_.torn.rank(), state_.torn.host())
      .with_operation(state_.torn.operation());
}

Status Engine::view_changed(const JoinReply& view) const {
  return Status(Code::kViewChanged, "the workers of the job have changed (" + state_.view_cause.message() +
                                        "): this worker is now rank " + std::to_string(view.rank) + " of " +
                                        std::to_string(view.members.size()) + ", view " +
                                        std::to_string(view.view) +
                                        "; go on with the next step, or make this call again on all workers")
      .with_rank(state_.view_cause.rank(), state_.view_cause.host());
}

Status Engine::not_started() const {
  return Status(Code::kState,
                "this worker has joined a running job, in which it takes part only after dsgd_start; call "
                "dsgd_start first");
}

Status Engine::admit_call() {
  if (!state_.failure.ok()) return state_.failure;
  if (outside_view()) return not_started();
  if (state_.recovering()) return view_changed(state_.mesh->members().view());
  if (view() == reported_view_) return {};
  reported_view_ = view();
  return view_changed(state_.mesh->members().view());
}

// Returns whether the change of the view fails a collective of the host. A start is repeated, a checkpoint of
// an interval is dsgd's own, and the host may not notice a prepared change; these do not count.
bool Engine::has_host_calls() const {
  for (uint32_t channel = start_.pending() ? 1 : 0; channel < kCheckpointChannel; ++channel) {
    const bool prepares = state_.prepared && channel_of(state_.prepared->call.number) == channel;
    if (state_.calls.open(channel) > (prepares ? 1 : 0)) return true;
  }
  return false;
}

void Engine::enter_view() {
  if (!next_view_ || state_.applying || !state_.failure.ok()) return;
  state_.view_cause = next_view_->why;
  const Status why = view_changed(next_view_->view);
  if (!state_.step.suspend(why)) return;  // the commit has begun; its end calls enter_view()
  const NextView next = std::move(*next_view_);
  next_view_.reset();
  state_.stalls.end(std::exchange(agreement_watch_, 0));
  if (fetcher_) fetcher_->stop_fetching_rest();
  state_.giver.change_view(state_.mesh->members().view().members, next.view.members);
  last_step_.forget_answers();
  const bool fails_calls = state_.phase == ViewPhase::kOpen && has_host_calls();
  state_.phase = ViewPhase::kEntering;
  state_.calls.stop(why);
  state_.mesh->change_view(next.view, why);
  state_.calls.end_waiting(why);
  checkpoints_.change_view(why);
  objects_.change_view(why);
  last_step_.reject_questions(why);
  if (state_.failure.ok()) state_.calls.go_on();
  state_.phase = ViewPhase::kAgreeing;
  if (fails_calls) reported_view_ = view();
  departed_.clear();
  last_values_.change_view(rank());
  state_.log->warning("view " + std::to_string(view()) + " with " + std::to_string(size()) +
                      " workers: " + state_.view_cause.message());
  if (on_view_) on_view_(next.view);
  for (const auto& [rank, call] : next.departures) state_.mesh->peers.note_departure(rank, call);
  state_.step.when_devices_done(waiter_, state_.in_view([this](const Status& status) {
    status.ok() ? begin_agreement() : fail(status, true);
  }));
}

// A learner is in a view for the first time. It has nothing to end.
void Engine::enter_first_view(const JoinReply& view, const Status& why) {
  state_.phase = ViewPhase::kAgreeing;
  state_.learner = true;
  state_.view_cause = why;
  reported_view_ = view.view;
  fetcher_->entered_view();
  state_.mesh->change_view(view, why);
  objects_.change_view(why);  // numbers of its puts are those of this view
  if (on_view_) on_view_(view);
  begin_agreement();
}

void Engine::begin_agreement() {
  // Uses a call number above all host calls, different in each view.
  const auto call = state_.calls.make(call_number(0, kCallsOfAChannel - view()));
  agreement_watch_ = state_.stalls.begin([this, number = call->number] {
    const Operations::WaitedPeers peers = state_.mesh->operations.waited_peers(number);
    return state_.report_of(peers.ranks, peers.name, "not sent its report or its state");
  });
  send_report(call);
}

void Engine::send_report(const std::shared_ptr<Call>& call) {
  ViewReport mine;
  // Others may have released state that this worker holds, so a learner with all state counts as a holder.
  mine.learner = state_.learner && !state_.started;
  if (state_.started || state_.learner) {
    const std::string signed_text = start_.present_signature();
    mine.signature = digest_of(signed_text);
    mine.signature_length = signed_text.size();
  }
  mine.started = state_.started;
  mine.steps = state_.next_step;
  if (state_.started) mine.held = placement_.held();
  mine.strategy_version = state_.strategy_version;
  if (state_.started || start_.pending()) {  // until then the host may change the model
    mine.replicas = static_cast<uint32_t>(state_.model.replicas.size());
    mine.learning_rate = state_.model.optimizer->learning_rate();
    mine.loss_scale = state_.model.loss_scale.factor();
    mine.loss_scale_age = static_cast<uint32_t>(state_.model.loss_scale.age());
  }
  mine.outcome = state_.last_result;
  mine.calls = state_.calls.next_indexes();
  checkpoints_.add_to_report(&mine);
  add_samples(&mine);
  mine.applied_change = state_.applied_change;
  mine.prepared_change = state_.prepared ? state_.prepared->call.number : 0;
  state_.calls.exchange(call, shape_of(0, Kind::kView, DType::kUint8, Algorithm::kOneHop, 0),
                        transport::encode(mine), state_.view_change_name(),
                        state_.in_view([this, call](const Status& status, const Calls::Parts& all) {
                          status.ok() ? on_reports(call, all) : on_missing_report(call, status);
                        }));
}

// A worker whose report is missing because it has closed its session left in an earlier view: the head was
// lost, or its Leave came too late. The head takes such a worker for lost and publishes a view without it. If
// no head is left, no view comes, and the session fails at the deadline.
void Engine::on_missing_report(const std::shared_ptr<Call>& call, const Status& why) {
  if (why.code() != Code::kWorkerLost || why.rank() == state_.mesh->members().view().head_rank)
    return fail(why, true);
  state_.log->info(why.message() + "; waits for a view without it");
  state_.loop.schedule(call->deadline, if_alive(state_.alive, [this, entered = view(), why] {
                         if (state_.recovering() && entered == view()) fail(why, true);
                       }));
}

void Engine::on_reports(const std::shared_ptr<Call>& call, const Calls::Parts& encoded) {
  const auto reports = decode_reports(encoded);
  if (!reports.ok()) return fail(reports.status(), true);
  const auto decided = decide(reports.value(), state_.mesh->members(), state_.view_cause);
  if (!decided.ok()) return fail(decided.status(), true);
  const ViewDecision& decision = decided.value();
  if (decision.apply > 0) return apply_prepared(call, decision.apply);
  if (const auto unused = std::exchange(state_.prepared, std::nullopt)) {
    // As has_host_calls(): the host has now seen the view.
    if (channel_of(unused->call.number) < kCheckpointChannel) reported_view_ = view();
    unused->end(view_changed(state_.mesh->members().view()));
  }
  const ViewReport& source = reports.value()[static_cast<size_t>(decision.source)];
  checkpoints_.take_reports(reports.value());
  state_.step.set_replicas(decision.replicas);
  if (Status dealt = deal_samples(reports.value(), source.outcome.all_done); !dealt.ok())
    return fail(dealt, !state_.learner);
  if (state_.started) {
    auto plan = state_.plan_of(state_.step.strategy());
    Status planned = plan.status();
    if (planned.ok()) planned = state_.step.change_plan(std::move(plan).value());
    if (!planned.ok()) return fail(planned, true);
  }
  if (decision.all_started) return copy_and_resume(call, decision, reports.value());
  if (state_.started) placement_.note_held();  // no step has been made, so all state is zero, everywhere
  state_.mesh->operations.end_call(call->number, {});
  if (state_.mesh->members().view().paused) return;  // a later view starts again
  state_.learner = false;
  fetcher_ = nullptr;
  const auto again = [this, calls = decision.calls, all = reports.value()](const Status& done) {
    if (!done.ok()) return fail(done, true);
    resume(calls);
    start_again(all);
  };
  state_.staging_queue.when_done(call->deadline, state_.in_view(again));
}

// A change of the strategy, or a load, was applied by some workers when the view changed. A worker applies
// only what all have prepared, so the others apply it now. Then all report again.
void Engine::apply_prepared(const std::shared_ptr<Call>& call, uint64_t change) {
  if (!state_.prepared || state_.prepared->call.number != change) return send_report(call);
  state_.log->info("this worker applies the change that it has prepared, since others have applied it");
  const auto prepared = std::exchange(state_.prepared, std::nullopt);
  prepared->apply(state_.in_view(
      [this, call](const Status& status) { status.ok() ? send_report(call) : fail(status, true); }));
}

// Copies the state to the workers of the view that lack it, moves the optimizer's state to its owners, and
// resumes the step unless the view is paused.
void Engine::copy_and_resume(const std::shared_ptr<Call>& call, const ViewDecision& decision,
                             const std::vector<ViewReport>& reports) {
  std::vector<HeldRanges> held;
  for (const ViewReport& report : reports) held.push_back(report.learner ? HeldRanges() : report.held);
  const auto placed = [this, call, calls = decision.calls, paused = state_.mesh->members().view().paused] {
    state_.mesh->operations.end_call(call->number, {});
    if (!paused) {
      resume(calls);
      resume_step();
    } else {  // recovery ends in a later view
      state_.stalls.end(std::exchange(agreement_watch_, 0));
      state_.phase = ViewPhase::kAgreed;
      ask_for_last_step();
    }
    if (!std::exchange(state_.learner, false)) return;
    fetcher_ = nullptr;
    last_step_.answer_questions(state_.next_step);
    if (on_state_held_) on_state_held_();
    start_.end({});
  };
  copier_.copy(call, decision, reports,
               [this, call, held = std::move(held), placed] { placement_.place(call, held, placed); });
}

// ---- the samples of data shards

void Engine::add_samples(ViewReport* mine) const {
  if (!state_.shards) return;
  constexpr size_t kRest = 4096;  // of a report
  transport::SampleReport samples = state_.shards->report(state_.step.running());
  if (!samples.joined && samples.drawn.made == 0) return;
  std::vector<std::byte> bytes = transport::encode(samples);
  if (bytes.size() + mine->held.size() > transport::kSmallBytes - kRest) {
    samples.ledgers.clear();
    bytes = transport::encode(samples);
  }
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  mine->samples.assign(data, data + bytes.size());
}

// `epoch_over`: the last step has ended an epoch.
Status Engine::deal_samples(const std::vector<ViewReport>& reports, bool epoch_over) {
  if (!state_.shards) return {};
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
  const bool joins = state_.shards->waits_for_others();
  if (!state_.shards->deal(samples, steps, epoch_over)) {
    const std::string why =
        "because of too many workers or data shards, the report of a worker about its samples is longer than "
        "64 KiB";
    if (joins)
      return Status(Code::kLimit,
                    "dsgd_start: this worker cannot join the running job, since it cannot learn "
                    "which samples are left: " +
                        why + "; use fewer data shards");
    state_.log->warning("cannot deal out the samples of lost workers: " + why +
                        "; data shards keep their split, and these samples are skipped in this epoch");
  }
  state_.shards->resume();
  return {};
}

void Engine::resume(const std::vector<uint64_t>& calls) {
  state_.calls.set_next_indexes(calls);
  end_recovery();
}

// ---- the last step

bool Engine::has_last_step() const {
  return state_.mesh && state_.options.views_change && state_.started && state_.next_step > 0 &&
         state_.failure.ok() && state_.torn.ok();
}

void Engine::await_last_step(transport::Time deadline, std::function<void(const Status&)> then) {
  if (state_.failure.code() == Code::kEvicted) return then(state_.failure);
  if (!has_last_step()) return then({});
  const uint64_t watch = state_.stalls.begin([this] {
    return state_.report_of(last_step_.missing(), "dsgd_close", "not completed the last step of this worker");
  });
  last_step_.await(state_.next_step, deadline, [this, watch, then = std::move(then)] {
    state_.stalls.end(watch);
    then(state_.failure.ok() ? state_.torn : state_.failure);
  });
  ask_for_last_step();
}

void Engine::ask_for_last_step() {
  if (state_.mesh && state_.phase >= ViewPhase::kAgreed) last_step_.ask(state_.mesh->peers, state_.next_step);
}

void Engine::on_completion_asked(int32_t rank, uint64_t steps, transport::Responder respond) {
  if (!state_.failure.ok()) return respond(state_.failure);
  last_step_.on_asked(rank, steps, std::move(respond));
  last_step_.answer_questions(state_.next_step);
}

void Engine::end_recovery() {
  state_.stalls.end(std::exchange(agreement_watch_, 0));
  state_.phase = ViewPhase::kOpen;
  ask_for_last_step();
  checkpoints_.start_next();
}

void Engine::resume_step() {
  if (!state_.step.running()) return;
  state_.step.resume(state_.calls.take());
}

// Some workers have not completed dsgd_start, so no worker has completed a step. All workers repeat the
// start, with the values of a worker that has completed it. A host whose dsgd_start has returned does not
// notice.
void Engine::start_again(const std::vector<ViewReport>& reports) {
  const auto first =
      std::find_if(reports.begin(), reports.end(), [](const ViewReport& report) { return report.started; });
  start_.set_source(first == reports.end() ? 0 : static_cast<int32_t>(first - reports.begin()));
  if (state_.started) {
    state_.phase = ViewPhase::kAgreed;
    const auto ended = [this](const Status& status) {
      if (!status.ok()) return fail(status, true);
      end_recovery();
      resume_step();
    };
    start_.begin(state_.step.strategy(), ended, {});
  }
  if (start_.pending()) start_.run();  // else when the host calls it
}

}  // namespace dsgd

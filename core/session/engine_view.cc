// Changes of the view: the workers that are left agree on where they stand, and training goes on.
//
//   enter_view    ends all work of the earlier view; the step in flight keeps its marks
//   report        sends the number of completed steps to all others, after that work has ended
//   decide        decides from all reports, alike on all workers (view_decision.h)
//   deal_samples  deals out the samples of lost workers
//   receive_state a worker that is one step behind copies the state of a worker that is not (engine_copy.cc).
//                 A learner fetches the state that it lacks from several workers (engine_join.cc). If any
//                 worker has a replica on a GPU, the learner copies all state from one worker instead
//   place_state   where owners keep the optimizer's state, moves it to the owners of the new view
//                 (engine_owners.cc)
//   resume        begins the suspended step again, from the same gradients; in a paused view, which has fewer
//                 than min_workers, the step waits for a later view instead
//
// A step thus has the contributions of all workers of the earlier view, or of exactly those of the new one.
// If only one worker has completed a step, the others copy it. If that worker dies before any of them has
// copied, they repeat the step without it. So a step is final only when the header of the next one is
// complete. A loss in between begins all this again in a later view.

#include <algorithm>

#include "core/base/describe.h"
#include "core/session/engine.h"
#include "core/session/signature.h"
#include "core/session/view_decision.h"
#include "transport/schema/codec.h"

namespace dsgd {

using transport::JoinReply;
using transport::ViewReport;

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

Status Engine::view_changed(const JoinReply& view) const {
  return Status(Code::kViewChanged, "the workers of the job have changed (" + view_cause_.message() +
                                        "): this worker is now rank " + std::to_string(view.rank) + " of " +
                                        std::to_string(view.members.size()) + ", view " +
                                        std::to_string(view.view) +
                                        "; go on without this call, or make it again on all workers")
      .with_rank(view_cause_.rank(), view_cause_.host());
}

Status Engine::admit_call() {
  if (!failure_.ok()) return failure_;
  if (enter_) {
    return Status(Code::kState,
                  "this worker has joined a running job, in which it takes part only after dsgd_start; call "
                  "dsgd_start first");
  }
  if (recovering_) return view_changed(mesh_->members().view());
  if (view() == reported_view_) return {};
  reported_view_ = view();
  return view_changed(mesh_->members().view());
}

// Whether collectives of the host are open, rather than a start, which begins again, or a checkpoint of an
// interval.
bool Engine::has_host_calls() const {
  for (uint32_t channel = starting_ ? 1 : 0; channel < kCheckpointChannel; ++channel) {
    if (calls_.is_open(channel)) return true;
  }
  return false;
}

void Engine::enter_view() {
  if (!next_view_ || applying_ || !failure_.ok()) return;
  view_cause_ = next_view_->why;
  const Status why = view_changed(next_view_->view);
  if (!step_.suspend(why)) return;  // its end enters the view
  const NextView next = std::move(*next_view_);
  next_view_.reset();
  entering_ = true;
  stop_fetching_rest();
  giver_.change_view(mesh_->members().view().members, next.view.members);
  last_step_.forget_answers();
  const bool fails_calls = !std::exchange(recovering_, true) && has_host_calls();
  agreed_ = false;
  calls_.stop(why);
  mesh_->change_view(next.view, why);
  calls_.end_waiting(why);
  checkpoints_.fail(why);
  objects_.change_view(why);
  last_step_.refuse_questions(why);
  if (failure_.ok()) calls_.go_on();
  entering_ = false;
  if (fails_calls) reported_view_ = view();
  departed_.clear();
  last_values_.change_view(rank());
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
  agreed_ = false;
  view_cause_ = why;
  reported_view_ = view.view;
  if (learning_) {
    mesh_->change_view(view, why);
  } else if (Status opened = open(view); !opened.ok()) {
    return fail(opened, true);
  }
  objects_.change_view(why);  // numbers of its puts are those of this view
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
  mine.calls = calls_.next_indexes();
  report_samples(&mine);
  // A number that no call of the host reaches, and another one in each view.
  const auto call = calls_.make(call_number(0, kCallsOfAChannel - view()));
  calls_.exchange(call, shape_of(0, Kind::kView, DType::kUint8, Algorithm::kOneHop, 0),
                  transport::encode(mine), "the change to view " + std::to_string(view()),
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

void Engine::on_reports(const std::shared_ptr<Call>& call,
                        const std::vector<std::vector<std::byte>>& encoded) {
  const auto reports = decode_reports(encoded);
  if (!reports.ok()) return fail(reports.status(), true);
  const auto decided = decide(reports.value(), mesh_->members(), view_cause_);
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

void Engine::resume(const std::vector<uint64_t>& calls) {
  calls_.set_next_indexes(calls);
  end_recovery();
}

// ---- the last step

void Engine::await_last_step(transport::Time deadline, std::function<void()> then) {
  if (!mesh_ || !options_.views_change || !started_ || next_step_ == 0 || !failure_.ok() || !torn_.ok())
    return then();
  last_step_.await(deadline, std::move(then));
  if (agreed_) last_step_.ask(mesh_->peers, next_step_);
}

void Engine::on_completion_asked(uint64_t steps, transport::Responder respond) {
  if (!failure_.ok()) return respond(failure_);
  last_step_.on_asked(steps, std::move(respond));
  last_step_.answer_questions(next_step_);
}

void Engine::end_recovery() {
  recovering_ = false;
  agreed_ = true;
  last_step_.ask(mesh_->peers, next_step_);
  checkpoints_.start_next();
}

void Engine::resume_step() {
  if (!step_.running()) return;
  step_.resume(calls_.take());
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

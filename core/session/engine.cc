#include "core/session/engine.h"

#include <algorithm>
#include <utility>

#include "core/base/describe.h"
#include "core/base/stopped.h"
#include "core/base/while_alive.h"

namespace dsgd {

namespace {

Status nobody_puts() {
  return Status(
      Code::kWorkerLost,
      "all other workers have closed their sessions, so no worker can put this object; put it before "
      "the sessions are closed");
}

constexpr char kExhausted[] = "no memory for what its communication needs";

}  // namespace

Engine::Engine(transport::Loop& loop, Model& model, EngineOptions options, std::shared_ptr<Log> log)
    : waiter_(loop),
      buffer_copier_(loop, options.step.lease),
      state_(loop, model, std::move(options), log),
      collectives_(state_.calls, state_.options.algorithm, [this] { return admit_call(); }),
      placement_(state_),
      start_(state_, placement_),
      strategy_change_(state_, placement_),
      checkpoints_(state_),
      copier_(state_, objects_, start_, fetcher_),
      exhausted_(Code::kNoMemory, kExhausted),
      last_step_(loop, state_.options.step.lease, log,
                 [this](transport::Time reported) { return verdict_due_(reported); }),
      last_values_(model) {
  state_.fail = [this](const Status& cause, bool tell_peers) { fail(cause, tell_peers); };
  state_.admit_call = [this] { return admit_call(); };
  state_.change_applied = [this] {
    last_step_.answer_questions(state_.next_step);
    enter_view();
  };
  if (state_.options.views_change)
    state_.step.on_worker_left([this](const Status& why) { await_verdict(why, why.rank(), why); });
}

Engine::~Engine() = default;

bool Engine::idle() const {
  if (failing_ == Failing::kDone) return true;
  return !state_.step.running() && objects_.idle() && buffer_copier_.idle() && checkpoints_.idle() &&
         state_.calls.idle() &&
         !(state_.mesh && state_.giver.gives_to_any_of(state_.mesh->members().view().members));
}

// Once the steps have ended, the call takes no number on any worker.
void Engine::reject_call(const std::string& name, const Status& why) {
  if (state_.torn.ok()) state_.reject_next_call(0, name, why);
}

Status Engine::open(const transport::JoinReply& view) {
  Status status = state_.mesh ? state_.mesh->open(view) : Status();
  if (view.members.size() == 1 && !state_.options.views_change)
    use_mesh(nullptr);  // this worker is the whole job
  exhausted_ =
      Status(Code::kNoMemory, "rank " + std::to_string(rank()) + ": " + kExhausted).with_rank(rank());
  return status;
}

// ---- the step

void Engine::step_begin(std::vector<double> weights, bool stop, bool wait_for_devices, StepDone done,
                        const CallOptions& options) {
  if (!state_.torn.ok()) return done(state_.torn, {});
  if (!state_.failure.ok()) return done(state_.failure, {});
  StepRequest request;
  request.step = state_.next_step;
  request.call = next_call();
  request.weights = std::move(weights);
  request.stop = stop;
  request.wait_for_devices = wait_for_devices;
  request.timeout = options.timeout_or(state_.options.step_timeout);
  request.deadline = state_.loop.now() + request.timeout;
  request.limit = state_.calls.deadline_setting(options);
  request.previous_view = std::max<int64_t>(state_.last_result.view, 1);
  if (state_.options.views_change && state_.shards) request.drawn = state_.shards->drawn_for_step();
  const uint64_t watch = state_.stalls.begin([this] { return wait_report(state_.step.call()); });
  const auto ended = [this, watch, done = std::move(done)](const Status& status, const StepResult& result) {
    state_.stalls.end(watch);
    step_ended(status, result, done);
  };
  if (state_.recovering()) return state_.step.begin_suspended(std::move(request), ended);
  state_.calls.take();
  state_.step.begin(std::move(request), ended);
}

void Engine::step_ended(const Status& status, const StepResult& result, const StepDone& done) {
  if (status.ok()) {
    ++state_.next_step;
    last_step_.answer_questions(state_.next_step);
    ask_for_last_step();
    if (state_.mesh) state_.giver.step_ended(state_.mesh->members().view().members);
    last_step_call_ = state_.step.call();
    state_.last_result = result;
    if (state_.shards) state_.shards->commit(state_.step.drawn());
    state_.compared = result.all_done;
    // A copied step was made in an earlier view.
    reported_view_ = std::max(reported_view_.load(), static_cast<uint64_t>(result.view));
    report_non_finite(result);
    warn_of_departed(last_step_call_);
    // While workers recover from a loss, those that made the step before cannot save it any more.
    if (state_.options.checkpoint_interval > 0 &&
        state_.next_step % state_.options.checkpoint_interval == 0 && !state_.recovering() && !next_view_)
      return checkpoints_.save_at_interval([done, result] { done({}, result); });
  } else if (status.code() == Code::kDiverged) {
    state_.torn = status;
  } else if (state_.torn.ok() && !state_.step.failed_in_agreement()) {
    state_.torn = Status(Code::kTorn, "step " + std::to_string(state_.next_step) +
                                          " failed half-way, so workers may be at different steps: " +
                                          status.message() + "; load a checkpoint")
                      .with_rank(status.rank(), status.host())
                      .with_operation(status.operation());
  }
  done(status, result);
  enter_view();
}

void Engine::report_non_finite(const StepResult& result) {
  if (result.nonfinite == 0) return;
  const std::string step = "step " + std::to_string(result.step);
  if (state_.options.step.nonfinite == NonFiniteAction::kSkip) {
    state_.events.note_event(
        "a step with gradients that are not finite was skipped",
        step + " was skipped, since gradients are not finite (nonfinite = skip): " + result.nonfinite_text);
  } else {
    state_.events.note_event(
        "elements of gradients that are not finite counted as 0",
        step + ": elements of gradients are not finite and count as 0 (nonfinite = zero): " +
            result.nonfinite_text +
            (result.skipped ? "; the step was skipped, since the mean is not finite (loss_scale)" : ""));
  }
}

// ---- objects

StallWatch::Ask Engine::object_report(const char* operation, const std::string& name) const {
  return [this, operation, name] { return WaitReport{waiting_for_object(operation, name)}; };
}

void Engine::put_object(const std::string& name, SharedObject object, Done done, const CallOptions& options) {
  if (Status status = admit_call(); !status.ok()) return done(status);
  objects_.put(name, std::move(object), object_deadline(options),
               state_.stalls.watch(object_report(Objects::kPut, name), std::move(done)));
}

void Engine::delete_object(const std::string& name, Done done, const CallOptions& options) {
  if (Status status = admit_call(); !status.ok()) return done(status);
  objects_.delete_everywhere(name, object_deadline(options),
                             state_.stalls.watch(object_report(Objects::kDelete, name), std::move(done)));
}

uint64_t Engine::get_object(const std::string& name, std::function<void(Result<SharedObject>)> done,
                            const CallOptions& options) {
  if (!objects_.has(name)) {
    Status never = state_.failure;
    if (never.ok() && outside_view()) never = not_started();
    if (never.ok() && size() > 1 && state_.mesh->peers.alone()) never = nobody_puts();
    if (!never.ok()) {
      done(never);
      return 0;
    }
  }
  const auto timer = std::make_shared<transport::TimerId>(0);
  const uint64_t watch = state_.stalls.begin(object_report(Objects::kGet, name));
  const uint64_t ticket =
      objects_.get(name, [this, timer, watch, done = std::move(done)](Result<SharedObject> object) {
        state_.loop.cancel(*timer);
        state_.stalls.end(watch);
        done(std::move(object));
      });
  if (ticket == 0) return 0;
  *timer = state_.loop.schedule(
      state_.calls.deadline(options), [this, ticket, name, limit = state_.calls.deadline_setting(options)] {
        const Status why = objects_.waiting(Objects::kGet, name);
        cancel_get(ticket, Status(Code::kTimeout,
                                  "dsgd_object_get has not ended within " + limit + ": " + why.message()));
      });
  return ticket;
}

// ---- failure and end

void Engine::fail(const Status& cause, bool tell_peers) {
  if (state_.failure.ok()) {
    state_.failure = cause;
    state_.calls.stop(cause);
    tell_peers_ = tell_peers;
    state_.log->report_failure(cause.rank());
    if (before_failure_) before_failure_(cause);
    // With one worker, the host itself has called dsgd_abort, so that is no error.
    const bool own = size() == 1 && cause.code() == Code::kAborted;
    state_.log->write(own ? LogLevel::kInfo : LogLevel::kError, state_.failure.message());
  }
  // Each part may be repeated: the loop calls fail() again if an allocation failure interrupts this.
  if (failing_ != Failing::kNo) return;
  struct Run {
    Failing& failing;
    ~Run() {
      if (failing == Failing::kRunning) failing = Failing::kNo;  // it was interrupted
    }
  } run{failing_ = Failing::kRunning};
  if (state_.shards) state_.shards->end_waits();
  if (state_.mesh && tell_peers_ && !outside_view()) state_.mesh->peers.tell_session_failed(state_.failure);
  if (state_.mesh) state_.mesh->fail(state_.failure);
  state_.step.abort(state_.failure);
  end_waits(state_.failure);
  if (after_failure_) after_failure_(state_.failure);
  failing_ = Failing::kDone;
}

void Engine::end_waits(const Status& why) {
  state_.stalls.end(std::exchange(agreement_watch_, 0));
  waiter_.fail(why);
  start_.end(why);
  state_.calls.end_waiting(why);
  if (const auto unused = std::exchange(state_.prepared, std::nullopt)) unused->end(why);
  checkpoints_.fail(why);
  objects_.fail(why);
  state_.giver.drop_all(why);
  state_.staging_queue.fail(why);
  last_step_.reject_questions(why);
  last_step_.end_wait();
  buffer_copier_.fail(why);
}

void Engine::compare_last_values(transport::Time deadline, std::function<void()> then) {
  if (!state_.mesh || !state_.started || state_.compared || state_.next_step == 0 || state_.step.running() ||
      !state_.failure.ok() || !state_.torn.ok())
    return then();
  state_.step.digest_values(
      deadline, [this, then = std::move(then)](const Status& status, std::vector<uint64_t> digests) {
        if (!status.ok()) {
          state_.log->warning("dsgd_close has not compared the values: " + status.message());
        } else if (state_.failure.ok()) {
          last_values_.set_own(rank(), state_.next_step, std::move(digests));
        }
        then();
      });
}

void Engine::on_goodbye(int32_t rank, uint64_t steps, std::vector<uint64_t> digests) {
  if (!digests.empty() && state_.started) last_values_.on_goodbye(rank, steps, std::move(digests));
}

uint64_t Engine::close(const Status& cause) {
  const Status closed =
      cause.ok() ? Status(Code::kClosed, "the session was closed while this operation was in flight") : cause;
  if (state_.failure.ok()) state_.failure = closed;
  state_.calls.stop(state_.failure);
  cause.ok() ? state_.step.fail(closed) : state_.step.abort(cause);
  // Steps go on without this worker if its start and all its steps have succeeded. state_.step.fail() above
  // has failed a step in flight.
  const uint64_t departure_call = state_.started && state_.torn.ok() ? next_call() : 0;
  if (state_.shards) state_.shards->end_waits();
  end_waits(closed);
  if (state_.mesh) state_.mesh->close(cause, state_.next_step, last_values_.own(), departure_call);
  return departure_call;
}

void Engine::on_peer_failure(int32_t rank, const Status& why) {
  if (outside_view()) return;  // a learner does not depend on its peers before it enters a view
  // A mismatch with a worker that joined later fails only that worker.
  const bool of_one = state_.options.views_change
                          ? !concerns_all_workers(why.code()) ||
                                (why.code() == Code::kMismatch && state_.has_joined_later(rank))
                          : why.code() == Code::kWorkerLost;
  if (!of_one) return fail(why, true);
  // No other worker has noticed damaged data, so the head has to be told.
  const bool corrupted = state_.options.views_change && why.code() == Code::kCorrupted;
  if (!state_.mesh->peers.is_leaving(rank)) return await_verdict(why, corrupted ? rank : -1, why);
  // Some of its data is lost. The head does not judge workers that have left, but may begin a new view.
  state_.options.views_change ? await_verdict(why, rank, why) : fail(why, true);
}

void Engine::on_peer_unreachable(int32_t rank, const Status& error, const Status& network_error,
                                 bool silent) {
  if (outside_view()) return;
  await_verdict(error, rank, network_error, silent);
}

// Waits for the head's verdict: two workers that cannot reach each other would each name the other, but the
// head has both reports, and all workers get its verdict. `peer` is -1 if another worker has found the loss.
// `silent`: as in on_peer_unreachable().
void Engine::await_verdict(const Status& error, int32_t peer, const Status& network_error, bool silent) {
  if (!state_.failure.ok()) return;
  if (!report_loss_ || !report_loss_(peer, network_error, silent)) return fail(error, true);
  fail_without_verdict(error, peer, silent, state_.loop.now());
}

// Fails the session when the verdict is due and has not come. That time becomes later: see
// Member::verdict_due().
void Engine::fail_without_verdict(const Status& error, int32_t peer, bool silent, transport::Time reported) {
  const transport::Time due = verdict_due_(reported);
  state_.loop.schedule(
      due, if_alive(state_.alive, [this, error, peer, silent, reported, due, view = view()] {
        if (!state_.failure.ok() || view != this->view()) return;
        const transport::Time now = state_.loop.now();
        if (was_stopped(due, now, state_.options.step.lease))  // the head may have been stopped, too
          return fail_without_verdict(error, peer, silent, now);
        if (verdict_due_(reported) > now) return fail_without_verdict(error, peer, silent, reported);
        // A head that was started again does not know of a cut that is over.
        if (silent && !state_.mesh->is_silent(peer)) return;
        // If the peer has left, Peers has ended what waits for it.
        if (state_.options.views_change || !state_.mesh->peers.is_leaving(peer)) fail(error, true);
      }));
}

// Warns once for each departed worker that a step has run without it.
void Engine::warn_of_departed(uint64_t call) {
  std::erase_if(departed_, [&](int32_t rank) {
    if (!state_.mesh->peers.left_before(rank, operation_number(call, 0))) return false;
    state_.log->warning("training goes on without " + state_.mesh->members().name(rank) +
                        ", which has closed its session; its model keeps the values that it had then; " +
                        kUnevenDataAdvice);
    return true;
  });
}

void Engine::on_peer_departed(int32_t rank) {
  state_.log->info(state_.mesh->members().name(rank) + " has closed its session");
  departed_.push_back(rank);
  ask_for_last_step();  // those that are left
  objects_.peer_left(rank);
  checkpoints_.start_next();
  if (fetcher_) fetcher_->source_left(rank);
  if (state_.mesh->peers.alone()) objects_.fail_gets(nobody_puts());
}

// The peer's steps have ended, so those of this worker end, too.
void Engine::on_given_up(int32_t rank, uint64_t call, const Status& cause) {
  if (state_.step.running() && state_.step.call() == call) return state_.step.fail(cause);
  if (call != last_step_call_ || !state_.torn.ok()) return;
  state_.torn = Status(Code::kTorn, "step " + std::to_string(state_.next_step - 1) +
                                        " has succeeded here, but " + state_.mesh->members().name(rank) +
                                        " gave it up: " + cause.message() + "; load a checkpoint")
                    .with_rank(rank, state_.mesh->members().host_of(rank));
  state_.log->error(state_.torn.message());
  state_.log->report_failure(rank);
  last_step_.end_wait();  // that peer never completes it
  if (state_.step.running()) state_.step.fail(state_.torn);
}

void Engine::on_object(transport::Message message, transport::Responder respond) {
  if (!state_.failure.ok()) return respond(state_.failure);
  if (const auto* put = std::get_if<transport::PutObject>(&message); put && put->again) {
    // This worker has joined. If it cannot take an object of the job, it fails alone. One that is not found
    // was deleted meanwhile.
    const auto failed = state_.in_view([this](const Status& why) { fail(why, false); });
    respond = [respond = std::move(respond), failed](const Result<transport::Message>& answer) {
      const Status why = answer.status();
      respond(answer);
      if (!why.ok() && !is_break(why) && why.code() != Code::kNotFound && why.code() != Code::kViewChanged)
        failed(why);
    };
  }
  objects_.receive(object_deadline(), std::move(message), respond);
}

}  // namespace dsgd

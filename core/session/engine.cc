#include "core/session/engine.h"

#include <algorithm>

#include "core/base/describe.h"

namespace dsgd {

namespace {

Status nobody_puts() {
  return Status(
      Code::kWorkerLost,
      "all other workers have closed their sessions, so no worker can put this object; put it before "
      "the sessions are closed");
}

constexpr const char* kCommunication = "what its communication needs";

}  // namespace

Engine::Engine(transport::Loop& loop, Model& model, EngineOptions options, std::shared_ptr<Log> log)
    : loop_(loop),
      model_(model),
      options_(std::move(options)),
      log_(std::move(log)),
      waiter_(loop),
      copies_(loop, options_.step.lease),
      step_(loop, model, options_.step, [this](const Status& why) { fail(why, true); }),
      stalls_(loop, options_.stall_warning, log_),
      calls_(loop, options_.step_timeout, stalls_, [this](uint64_t call) { return wait_report(call); }),
      collectives_(calls_, options_.algorithm, [this] { return admit_call(); }),
      exhausted_(Code::kNoMemory, std::string("no memory for ") + kCommunication),
      events_(loop, log_),
      checkpoints_(loop, [this] { return !recovering_; }),
      giver_(model, step_),
      last_step_(loop, options_.step.lease, log_,
                 [this](transport::Time reported) { return verdict_due_(reported); }),
      last_values_(model) {}

Engine::~Engine() = default;

bool Engine::idle() const {
  if (at_rest_) return true;
  return !step_.running() && objects_.idle() && copies_.idle() && checkpoints_.idle() && calls_.idle() &&
         !(mesh_ && giver_.gives_to_any_of(mesh_->members().view().members));
}

Status Engine::no_memory(const std::string& what) const {
  return Status(Code::kNoMemory, "rank " + std::to_string(rank()) + ": no memory for " + what)
      .with_rank(rank());
}

Status Engine::open(const transport::JoinReply& view) {
  Status status = mesh_ ? mesh_->open(view) : Status();
  if (view.members.size() == 1 && !options_.views_change) use_mesh(nullptr);  // this worker is the whole job
  exhausted_ = no_memory(kCommunication);
  return status;
}

// ---- the step

void Engine::step_begin(std::vector<double> weights, bool stop, bool wait_for_devices, StepDone done,
                        const CallOptions& options) {
  if (!torn_.ok()) return done(torn_, {});
  if (!failure_.ok()) return done(failure_, {});
  StepRequest request;
  request.step = next_step_;
  request.call = next_call();
  request.weights = std::move(weights);
  request.stop = stop;
  request.wait_for_devices = wait_for_devices;
  request.timeout = options.timeout_or(options_.step_timeout);
  request.deadline = loop_.now() + request.timeout;
  request.limit = calls_.deadline_setting(options);
  request.previous_view = std::max<int64_t>(last_result_.view, 1);
  if (options_.views_change && shards_) request.drawn = shards_->drawn_for_step();
  const uint64_t watch = stalls_.begin([this] { return wait_report(step_.call()); });
  const auto ended = [this, watch, done = std::move(done)](const Status& status, const StepResult& result) {
    stalls_.end(watch);
    last_step_failed_ = !status.ok() && !step_.failed_in_agreement();
    if (status.ok()) {
      ++next_step_;
      last_step_.answer_questions(next_step_);
      if (mesh_) giver_.step_ended(mesh_->members().view().members);
      last_step_call_ = step_.call();
      last_result_ = result;
      if (shards_) shards_->commit(step_.drawn());
      compared_ = result.all_done;
      reported_view_ = static_cast<uint64_t>(result.view);  // of a copied step an earlier one
      report_non_finite(result);
      warn_of_departed(last_step_call_);
      // While workers recover from a loss, those that made the step before cannot save it any more.
      if (options_.checkpoint_interval > 0 && next_step_ % options_.checkpoint_interval == 0 &&
          !recovering_ && !next_view_)
        return save_at_interval([done, result] { done({}, result); });
    } else if (status.code() == Code::kDiverged) {
      torn_ = status;
    } else if (torn_.ok() && !step_.failed_in_agreement()) {
      torn_ = Status(Code::kTorn, "step " + std::to_string(next_step_) +
                                      " failed half-way, so workers may be at different steps: " +
                                      status.message() + "; load a checkpoint")
                  .with_rank(status.rank(), status.host())
                  .with_operation(status.operation());
    }
    done(status, result);
    enter_view();
  };
  if (recovering_) return step_.begin_suspended(std::move(request), ended);
  calls_.take();
  step_.begin(std::move(request), ended);
}

void Engine::report_non_finite(const StepResult& result) {
  if (result.nonfinite == 0) return;
  const std::string step = "step " + std::to_string(result.step);
  if (options_.step.nonfinite == NonFiniteAction::kSkip) {
    events_.note_event(
        "a step with gradients that are not finite was skipped",
        step + " was skipped, since gradients are not finite (nonfinite = skip): " + result.nonfinite_text);
  } else {
    events_.note_event(
        "elements of gradients that are not finite counted as 0",
        step + ": elements of gradients are not finite and count as 0 (nonfinite = zero): " +
            result.nonfinite_text +
            (result.skipped ? "; the step was skipped, since the mean is not finite (loss_scale)" : ""));
  }
}

// ---- objects

uint64_t Engine::watch_object(const char* operation, const std::string& name) {
  return stalls_.begin([this, operation, name] { return WaitReport{waiting_for_object(operation, name)}; });
}

Engine::Done Engine::watched(const char* operation, const std::string& name, Done done) {
  return [this, watch = watch_object(operation, name), done = std::move(done)](const Status& status) {
    stalls_.end(watch);
    done(status);
  };
}

void Engine::put_object(const std::string& name, SharedObject object, Done done, const CallOptions& options) {
  if (Status status = admit_call(); !status.ok()) return done(status);
  objects_.put(name, std::move(object), object_deadline(options),
               watched(Objects::kPut, name, std::move(done)));
}

void Engine::delete_object(const std::string& name, Done done, const CallOptions& options) {
  if (Status status = admit_call(); !status.ok()) return done(status);
  objects_.delete_everywhere(name, object_deadline(options),
                             watched(Objects::kDelete, name, std::move(done)));
}

uint64_t Engine::get_object(const std::string& name, std::function<void(Result<SharedObject>)> done,
                            const CallOptions& options) {
  if (!objects_.has(name)) {
    Status nobody = failure_.ok() && size() > 1 && mesh_->peers.alone() ? nobody_puts() : failure_;
    if (!nobody.ok()) {
      done(nobody);
      return 0;
    }
  }
  const auto timer = std::make_shared<transport::TimerId>(0);
  const uint64_t watch = watch_object(Objects::kGet, name);
  const uint64_t ticket =
      objects_.get(name, [this, timer, watch, done = std::move(done)](Result<SharedObject> object) {
        loop_.cancel(*timer);
        stalls_.end(watch);
        done(std::move(object));
      });
  if (ticket == 0) return 0;
  *timer = loop_.schedule(
      calls_.deadline(options), [this, ticket, name, limit = calls_.deadline_setting(options)] {
        const Status why = objects_.waiting(Objects::kGet, name);
        cancel_get(ticket, Status(Code::kTimeout,
                                  "dsgd_object_get has not ended within " + limit + ": " + why.message()));
      });
  return ticket;
}

// ---- failure and end

void Engine::fail(const Status& cause, bool tell_peers) {
  if (failure_.ok()) {
    failure_ = cause;
    calls_.stop(cause);
    tell_peers_ = tell_peers;
    log_->report_failure(cause.rank());
    if (before_failure_) before_failure_(cause);
    // With one worker, the host itself has called dsgd_abort, so that is no error.
    const bool own = size() == 1 && cause.code() == Code::kAborted;
    log_->write(own ? LogLevel::kInfo : LogLevel::kError, failure_.message());
  }
  // Each part may be repeated: the loop calls fail() again if an allocation failure interrupts this.
  if (at_rest_ || failing_) return;
  struct Failing {
    bool& flag;
    ~Failing() { flag = false; }
  } failing{failing_};
  failing_ = true;
  if (shards_) shards_->resume();
  if (mesh_ && tell_peers_ && !enter_) mesh_->peers.tell_session_failed(failure_);
  if (mesh_) mesh_->fail(failure_);
  step_.abort(failure_);
  end_waits(failure_);
  if (after_failure_) after_failure_(failure_);
  at_rest_ = true;
}

void Engine::end_waits(const Status& why) {
  waiter_.fail(why);
  if (starting_) std::exchange(starting_, std::nullopt)->done(why);
  calls_.end_waiting(why);
  checkpoints_.fail(why);
  objects_.fail(why);
  giver_.drop_all(why);
  last_step_.refuse_questions(why);
  last_step_.end_wait();
  copies_.fail(why);
}

void Engine::compare_last_values(transport::Time deadline, std::function<void()> then) {
  if (!mesh_ || !started_ || compared_ || next_step_ == 0 || step_.running() || !failure_.ok() || !torn_.ok())
    return then();
  step_.digest_values(deadline,
                      [this, then = std::move(then)](const Status& status, std::vector<uint64_t> digests) {
                        if (!status.ok()) {
                          log_->warning("dsgd_close has not compared the values: " + status.message());
                        } else if (failure_.ok()) {
                          last_values_.set_own(rank(), next_step_, std::move(digests));
                        }
                        then();
                      });
}

void Engine::on_goodbye(int32_t rank, uint64_t steps, std::vector<uint64_t> digests) {
  if (!digests.empty() && started_) last_values_.on_goodbye(rank, steps, std::move(digests));
}

uint64_t Engine::close(const Status& cause) {
  const Status closed =
      cause.ok() ? Status(Code::kClosed, "the session was closed while this operation was in flight") : cause;
  if (failure_.ok()) failure_ = closed;
  calls_.stop(failure_);
  cause.ok() ? step_.fail(closed) : step_.abort(cause);
  // Steps go on without this worker if its start and all its steps have succeeded. step_.fail() above has
  // marked a step in flight as failed.
  const uint64_t departure_call = started_ && torn_.ok() && !last_step_failed_ ? next_call() : 0;
  if (shards_) shards_->resume();
  end_waits(closed);
  if (mesh_) mesh_->close(cause, next_step_, last_values_.own(), departure_call);
  return departure_call;
}

void Engine::on_peer_failure(int32_t rank, const Status& why) {
  if (enter_) return;  // a learner outside of any view: a failing peer does not keep it from entering one
  // A mismatch with a worker that has joined the running job is its own.
  const bool of_one = options_.views_change ? !concerns_all_workers(why.code()) ||
                                                  (why.code() == Code::kMismatch && has_joined_later(rank))
                                            : why.code() == Code::kWorkerLost;
  if (!of_one) return fail(why, true);
  // No other worker has noticed damaged data, so the head has to be told.
  const bool corrupted = options_.views_change && why.code() == Code::kCorrupted;
  if (!mesh_->peers.is_leaving(rank)) return await_verdict(why, corrupted ? rank : -1, why);
  // Some of its data is lost. The head does not judge workers that have left, but may begin a new view.
  options_.views_change ? await_verdict(why, rank, why) : fail(why, true);
}

void Engine::on_peer_unreachable(int32_t rank, const Status& error, const Status& network_error,
                                 bool silent) {
  if (enter_) return;
  await_verdict(error, rank, network_error, silent);
}

// Waits for the head's verdict: two workers that cannot reach each other would each name the other, but the
// head has both reports, and all workers get its verdict. `peer` is -1 if another worker has found the loss.
// `silent`: as in on_peer_unreachable().
void Engine::await_verdict(const Status& error, int32_t peer, const Status& network_error, bool silent) {
  if (!failure_.ok()) return;
  if (!on_loss_ || !on_loss_(peer, network_error, silent)) return fail(error, true);
  fail_without_verdict(error, peer, silent, loop_.now());
}

// Fails the session when the verdict is due and has not come. That time becomes later while the head is lost.
void Engine::fail_without_verdict(const Status& error, int32_t peer, bool silent, transport::Time reported) {
  loop_.schedule(verdict_due_(reported),
                 [this, error, peer, silent, reported, view = view(), alive = std::weak_ptr(alive_)] {
                   if (alive.expired() || !failure_.ok() || view != this->view()) return;
                   if (verdict_due_(reported) > loop_.now())
                     return fail_without_verdict(error, peer, silent, reported);
                   // A head that was started again does not know of a cut that is over.
                   if (silent && !mesh_->is_silent(peer)) return;
                   // If the peer has left, Peers has ended what waits for it.
                   if (options_.views_change || !mesh_->peers.is_leaving(peer)) fail(error, true);
                 });
}

// Warns once for each departed worker that a step has run without it.
void Engine::warn_of_departed(uint64_t call) {
  std::erase_if(departed_, [&](int32_t rank) {
    if (!mesh_->peers.left_before(rank, operation_number(call, 0))) return false;
    log_->warning("training goes on without " + mesh_->members().name(rank) +
                  ", which has closed its session; its model keeps the values that it had then; " +
                  kUnevenDataAdvice);
    return true;
  });
}

void Engine::on_peer_departed(int32_t rank) {
  log_->info(mesh_->members().name(rank) + " has closed its session");
  departed_.push_back(rank);
  if (agreed_) last_step_.ask(mesh_->peers, next_step_);  // those that are left
  objects_.peer_left(rank);
  on_source_left(rank);
  if (mesh_->peers.alone()) objects_.fail_gets(nobody_puts());
}

// The peer's steps have ended, so those of this worker end, too.
void Engine::on_given_up(int32_t rank, uint64_t call, const Status& cause) {
  if (step_.running() && step_.call() == call) return step_.fail(cause);
  if (call != last_step_call_ || !torn_.ok()) return;
  torn_ = Status(Code::kTorn, "step " + std::to_string(next_step_ - 1) + " has succeeded here, but " +
                                  mesh_->members().name(rank) + " gave it up: " + cause.message() +
                                  "; load a checkpoint")
              .with_rank(rank, mesh_->members().host_of(rank));
  log_->error(torn_.message());
  log_->report_failure(rank);
  last_step_.end_wait();  // that peer never completes it
  if (step_.running()) step_.fail(torn_);
}

void Engine::on_object(transport::Message message, transport::Responder respond) {
  if (!failure_.ok()) return respond(failure_);
  if (const auto* put = std::get_if<transport::PutObject>(&message); put && put->again) {
    // This worker has joined. If it cannot take an object of the job, it fails alone. One that is not found
    // was deleted meanwhile.
    const auto failed = in_view([this](const Status& why) { fail(why, false); });
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

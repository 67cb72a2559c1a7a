// The state of a worker that joins. It fetches values and optimizer state from all workers of the present
// view while they train on, a part of the elements from each, as streams (core/step/state_stream.h):
//
//   learn            before it is in a view: opens the mesh as the last rank, and asks each worker
//   on_state_asked   at the others: gives the next parts (state_giver.h). Refuses for now (kNotNow) where all
//                    workers would fail in a new view
//   enter_now        each stream was whole once, one has failed, or time is over: asks the head for a view
//   fetch_rest       in the view, whose workers make no step without it: fetches what is left, and compares
//                    digests of the values, which the hosts may have changed
//
// A stream that has failed begins again in fetch_rest(), from a worker that has completed all steps. So
// whatever happens before, the worker enters a view with the state that the others have then; they only wait
// longer. Where a replica of any worker is on a GPU, it copies all state in the view (engine_copy.cc).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/session/engine.h"
#include "core/session/signature.h"
#include "core/step/state_stream.h"

namespace dsgd {

using transport::FetchState;
using transport::Message;
using transport::StateParts;
using transport::ViewReport;

struct Engine::Learning {
  struct Source {
    int32_t number;        // of the worker, in the job
    int32_t rank;          // in the present view
    uint64_t begin, end;   // elements
    uint64_t next = 0;     // answer of the stream
    uint64_t ask = 0;      // the latest; answers to earlier ones are not taken
    bool asked = false;    // an answer is awaited
    bool whole = false;    // it has been once
    bool refuses = false;  // for now
    bool done = false;     // in fetch_rest()
  };
  std::vector<Source> sources;  // empty: it fetches all in the view, from one worker
  uint64_t asks = 0;
  transport::TimerId timer = 0;  // of end_learning()
  uint64_t signature = 0;
  bool entering = false;  // the head was asked for a view
  // Of fetch_rest().
  std::vector<int32_t> holders;  // ranks that have completed all steps
  transport::Time deadline{};
  std::function<void()> then;  // null: it has not begun in this view
};

bool Engine::is_on_host() const {
  const auto& contexts = step_.contexts();
  return std::all_of(contexts.begin(), contexts.end(),
                     [](const DeviceContext& context) { return context.is_host(); });
}

// ---- the learner

void Engine::learn() {
  auto contexts = make_contexts(model_);
  if (!contexts.ok() || !contexts.value().back().is_host()) return enter_();
  step_.set_contexts(std::move(contexts).value());
  if (!learning_) {  // else an earlier dsgd_start has failed
    if (Status opened = open(present_view_()); !opened.ok()) return fail(opened, false);
    learning_ = std::make_shared<Learning>();
  }
  auto plan = plan_of(starting_->strategy);
  if (!plan.ok()) return enter_();  // the view tells why
  total_replicas_ = static_cast<uint32_t>(model_.replicas.size());
  if (Status applied = apply_plan(std::move(plan).value()); !applied.ok()) return;
  learning_->signature = digest_of(signature(starting_->strategy.describe(), false));
  const uint64_t elements = trained_elements(model_), others = static_cast<uint64_t>(size()) - 1;
  for (uint64_t r = 0; r < others; ++r) {
    learning_->sources.push_back({mesh_->members().view().members[r].number, static_cast<int32_t>(r),
                                  elements * r / others, elements * (r + 1) / others});
  }
  log_->info("fetches the state of " + counted(others, "worker") + " that train on");
  for (size_t s = 0; s < others; ++s) ask_for_state(s);
  if (const transport::Time due = calls_.deadline(starting_->options); due != transport::kNever) {
    learning_->timer = loop_.schedule(due, [this, alive = std::weak_ptr(alive_)] {
      if (!alive.expired() && enter_ && starting_ && failure_.ok()) end_learning();
    });
  }
  enter_when_learnt();
}

// The host may change the model now, so nothing more is written to it. If it calls dsgd_start again, this
// worker begins again.
void Engine::fail_start(const Status& why) {
  if (learning_) {
    loop_.cancel(learning_->timer);
    learning_->sources.clear();
    learning_->entering = false;
  }
  if (starting_) std::exchange(starting_, std::nullopt)->done(why);
}

// The time of dsgd_start is over.
void Engine::end_learning() {
  std::vector<int32_t> refusing;
  for (const Learning::Source& source : learning_->sources) {
    if (source.refuses) refusing.push_back(source.rank);
  }
  if (refusing.empty() || learning_->entering) return enter_now();
  fail_start(mesh_->members()
                 .timeout_error("dsgd_start: the other workers have not started, loaded a checkpoint or "
                                "changed the strategy, which they do before another worker takes part,",
                                calls_.deadline_setting(starting_->options), refusing)
                 .with_operation("dsgd_start"));
}

// A worker that is lost does not answer, so an answer is waited for until a lease, at most; but when the
// stream was whole, it comes after the worker's next step.
void Engine::ask_for_state(size_t index) {
  Learning::Source& source = learning_->sources[index];
  const bool last = learning_->then != nullptr;
  source.asked = true;
  source.ask = ++learning_->asks;
  const transport::Time due = last           ? learning_->deadline
                              : source.whole ? transport::kNever
                                             : loop_.now() + options_.step.lease;
  const FetchState question{view(), rank(), source.begin, source.end, source.next, learning_->signature,
                            last};
  mesh_->peers.call(source.rank, question, due,
                    [this, alive = std::weak_ptr(alive_), index, asked_in = view(),
                     ask = source.ask](const Result<Message>& answer) {
                      if (!alive.expired()) on_state(index, asked_in, ask, answer);
                    });
}

// The stream begins again then.
void Engine::ask_later(size_t index, const Status& why) {
  Learning::Source& source = learning_->sources[index];
  if (!std::exchange(source.refuses, true))
    log_->info("waits for " + mesh_->members().name(source.rank) + ": " + why.message());
  source.next = 0;
  source.whole = false;
  loop_.schedule(loop_.now() + options_.step.lease / 4,
                 [this, alive = std::weak_ptr(alive_), index, ask = source.ask] {
                   if (alive.expired() || !enter_ || !failure_.ok() || index >= learning_->sources.size())
                     return;
                   if (learning_->sources[index].ask == ask) ask_for_state(index);
                 });
}

void Engine::on_state(size_t index, uint64_t asked_in, uint64_t ask, const Result<Message>& answer) {
  if (!learning_ || !failure_.ok() || index >= learning_->sources.size() ||
      learning_->sources[index].ask != ask)
    return;
  Learning::Source& source = learning_->sources[index];
  source.asked = false;
  if (!answer.ok()) {
    if (enter_ && answer.status().code() == kNotNow) return ask_later(index, answer.status());
    if (enter_) {
      log_->debug("takes part before it has fetched all state: " + answer.status().message());
      return enter_now();
    }
    if (!learning_->then) return;
    if (asked_in != view()) return ask_for_state(index);
    if (answer.status().code() == Code::kState && source.next > 0) {
      source.next = 0;
      return ask_for_state(index);
    }
    if (mesh_->peers.has_left(source.rank)) return change_source(index);
    if (is_break(answer.status()) || answer.status().code() == Code::kViewChanged) return;  // news will come
    return fail(answer.status(), true);
  }
  const auto* parts = std::get_if<StateParts>(&answer.value());
  Status taken = parts ? Status() : Status(Code::kInternal, "another answer");
  OptimizerState& state = step_.optimizer_state().on_host();
  for (size_t p = 0; parts && p < parts->parts.size() && taken.ok(); ++p)
    taken = take_part(parts->parts[p], model_, step_.contexts().front(), state, !step_.updates_at_owner());
  if (!taken.ok()) return fail(invalid_data("dsgd_start", source.rank, taken.message()), true);
  source.refuses = false;
  ++source.next;
  source.whole = source.whole || parts->whole;
  if (enter_) {
    ask_for_state(index);
    return enter_when_learnt();
  }
  if (!learning_->then) return;
  if (asked_in != view() || !parts->whole) return ask_for_state(index);
  if (parts->digest != digest_values(model_, source.begin, source.end)) {
    log_->info("the values of " + mesh_->members().name(source.rank) +
               " have changed between steps; fetches them again");
    source.next = 0;
    return ask_for_state(index);
  }
  source.done = true;
  const auto& sources = learning_->sources;
  if (!std::all_of(sources.begin(), sources.end(), [](const auto& one) { return one.done; })) return;
  std::exchange(learning_->then, nullptr)();
}

void Engine::enter_when_learnt() {
  const auto& sources = learning_->sources;
  if (std::all_of(sources.begin(), sources.end(), [](const auto& source) { return source.whole; }))
    enter_now();
}

void Engine::enter_now() {
  if (!std::exchange(learning_->entering, true)) enter_();
}

void Engine::check_sources() {
  if (!enter_ || !learning_) return;
  const std::vector<transport::MemberInfo> members = present_view_().members;
  const auto is_present = [&](const Learning::Source& source) {
    return std::any_of(members.begin(), members.end(),
                       [&](const transport::MemberInfo& member) { return member.number == source.number; });
  };
  const auto& sources = learning_->sources;
  if (!std::all_of(sources.begin(), sources.end(), is_present)) enter_now();
}

// A stream begins again, from another worker.
void Engine::change_source(size_t index) {
  Learning::Source& source = learning_->sources[index];
  std::vector<int32_t> left = learning_->holders;
  std::erase_if(left, [this](int32_t rank) { return mesh_->peers.has_left(rank); });
  if (left.empty()) {
    return fail(
        Status(Code::kWorkerLost,
               "all workers that hold the state of the job have closed their sessions; start a new job"),
        false);
  }
  source.rank = left[index % left.size()];
  source.number = mesh_->members().view().members[static_cast<size_t>(source.rank)].number;
  source.next = 0;
  ask_for_state(index);
}

// From the workers that have completed all steps; the others may be copying one.
void Engine::fetch_rest(const std::vector<ViewReport>& reports, const ViewReport& of,
                        transport::Time deadline, std::function<void()> then) {
  learning_->holders.clear();
  for (int32_t rank = 0; rank < size(); ++rank) {
    const ViewReport& report = reports[static_cast<size_t>(rank)];
    if (!report.learner && report.steps == of.steps) learning_->holders.push_back(rank);
  }
  learning_->deadline = deadline;
  learning_->then = std::move(then);
  auto& sources = learning_->sources;
  if (sources.empty()) sources.push_back({-1, -1, 0, trained_elements(model_)});
  for (size_t s = 0; s < sources.size(); ++s) {
    Learning::Source& source = sources[s];
    source.done = false;
    const auto same = std::find_if(learning_->holders.begin(), learning_->holders.end(), [&](int32_t rank) {
      return mesh_->members().view().members[static_cast<size_t>(rank)].number == source.number;
    });
    if (same == learning_->holders.end()) {
      change_source(s);
    } else {
      source.rank = *same;
      if (!source.asked) ask_for_state(s);
    }
    if (!learning_) return;  // it has failed
  }
}

// The view changes. Answers that come are still taken.
void Engine::stop_fetching_rest() {
  if (learning_) learning_->then = nullptr;
}

void Engine::on_source_left(int32_t rank) {
  for (size_t s = 0; learning_ && learning_->then && s < learning_->sources.size(); ++s) {
    if (learning_->sources[s].rank == rank && !learning_->sources[s].done) change_source(s);
  }
}

// ---- the others

void Engine::on_state_asked(const std::string& worker_id, const FetchState& question,
                            transport::Responder respond) {
  if (!failure_.ok()) return respond(failure_);
  const bool newcomer =
      rank_of(mesh_->members().view().members, worker_id) < 0;  // which knows an earlier view
  if (!newcomer && question.view != view())
    return respond(Status(Code::kViewChanged, "the workers of the job have changed"));
  const bool awaited = mesh_->members().view().paused;  // the others wait for it
  if (newcomer && !awaited && (!started_ || !torn_.ok()))
    return respond(Status(kNotNow, started_ ? "it has to load a checkpoint" : "it has not started"));
  if (newcomer && changes_ > 0)
    return respond(Status(kNotNow, "it loads a checkpoint or changes the strategy"));
  if (!started_ || !torn_.ok() || !is_on_host())
    return respond(Status(Code::kUnsupported, "this worker does not give its state while it trains"));
  if (newcomer && question.next == 0 &&
      question.signature != digest_of(signature(step_.strategy().describe(), false)))
    return respond(Status(Code::kMismatch, "this worker has another model or other settings"));
  giver_.give(worker_id, question, !step_.updates_at_owner(), std::move(respond));
}

}  // namespace dsgd

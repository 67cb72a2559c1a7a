#include "core/session/state_fetcher.h"

#include <algorithm>
#include <string>
#include <variant>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/step/state_stream.h"

namespace dsgd {

using transport::FetchState;
using transport::Message;
using transport::StateParts;
using transport::ViewReport;

void StateFetcher::begin(uint64_t signature, const CallOptions& options) {
  signature_ = signature;
  options_ = options;
  const uint64_t elements = trained_elements(state_.model);
  const uint64_t others = static_cast<uint64_t>(state_.size()) - 1;
  for (uint64_t r = 0; r < others; ++r) {
    sources_.push_back({state_.mesh->members().view().members[r].number, static_cast<int32_t>(r),
                        elements * r / others, elements * (r + 1) / others});
  }
  state_.log->info("fetches the state of " + counted(others, "worker") + " that train on");
  for (size_t s = 0; s < others; ++s) ask(s);
  if (const transport::Time due = state_.calls.deadline(options_); due != transport::kNever) {
    timer_ = state_.loop.schedule(due, [this, alive = std::weak_ptr(alive_)] {
      if (!alive.expired() && !in_view_ && state_.failure.ok()) on_timeout();
    });
  }
  enter_when_whole();
}

void StateFetcher::stop() {
  state_.loop.cancel(timer_);
  sources_.clear();
  entering_ = false;
}

// The time of dsgd_start is over. stop() cancels this timer, so the start is pending here.
void StateFetcher::on_timeout() {
  std::vector<int32_t> refusing;
  for (const Source& source : sources_) {
    if (source.refuses) refusing.push_back(source.rank);
  }
  if (refusing.empty() || entering_) return enter_now();
  give_up_(state_.mesh->members()
               .timeout_error("dsgd_start: the other workers have not started, loaded a checkpoint or "
                              "changed the strategy, which they do before another worker takes part,",
                              state_.calls.deadline_setting(options_), refusing)
               .with_operation("dsgd_start"));
}

// A lost worker does not answer, so the wait for an answer ends after one lease. When the stream was whole
// once, the answer comes only after the worker's next step, so there is no deadline.
void StateFetcher::ask(size_t index) {
  Source& source = sources_[index];
  const bool last = then_ != nullptr;
  source.asked = true;
  source.ask = ++asks_;
  const transport::Time due = last           ? deadline_
                              : source.whole ? transport::kNever
                                             : state_.loop.now() + state_.options.step.lease;
  const FetchState question{state_.view(), state_.rank(), source.begin, source.end,
                            source.next,   signature_,    last};
  state_.mesh->peers.call(source.rank, question, due,
                          [this, alive = std::weak_ptr(alive_), index, asked_in = state_.view(),
                           ask = source.ask](const Result<Message>& answer) {
                            if (!alive.expired()) on_answer(index, asked_in, ask, answer);
                          });
}

// Asks again after a quarter of a lease. The stream begins again then.
void StateFetcher::ask_later(size_t index, const Status& why) {
  Source& source = sources_[index];
  if (!std::exchange(source.refuses, true))
    state_.log->info("waits for " + state_.mesh->members().name(source.rank) + ": " + why.message());
  source.next = 0;
  source.whole = false;
  state_.loop.schedule(state_.loop.now() + state_.options.step.lease / 4,
                       [this, alive = std::weak_ptr(alive_), index, latest = source.ask] {
                         if (alive.expired() || in_view_ || !state_.failure.ok() || index >= sources_.size())
                           return;
                         if (sources_[index].ask == latest) ask(index);
                       });
}

void StateFetcher::on_answer(size_t index, uint64_t asked_in, uint64_t of_ask,
                             const Result<Message>& answer) {
  if (!state_.failure.ok() || index >= sources_.size() || sources_[index].ask != of_ask) return;
  Source& source = sources_[index];
  source.asked = false;
  if (!answer.ok()) {
    if (!in_view_ && answer.status().code() == StateGiver::kNotNow) return ask_later(index, answer.status());
    if (!in_view_) {
      state_.log->debug("takes part before it has fetched all state: " + answer.status().message());
      return enter_now();
    }
    if (!then_) return;
    if (asked_in != state_.view()) return ask(index);
    if (answer.status().code() == Code::kState && source.next > 0) {
      source.next = 0;
      return ask(index);
    }
    if (state_.mesh->peers.has_left(source.rank)) return change_source(index);
    if (is_break(answer.status()) || answer.status().code() == Code::kViewChanged) return;  // news will come
    return state_.fail(answer.status(), true);
  }
  const auto* parts = std::get_if<StateParts>(&answer.value());
  Status taken = parts ? Status() : Status(Code::kInternal, "another answer");
  OptimizerState& state = state_.step.optimizer_state().on_host();
  for (size_t p = 0; parts && p < parts->parts.size() && taken.ok(); ++p) {
    taken = take_part(parts->parts[p], state_.model, state_.step.contexts().front(), state,
                      !state_.step.updates_at_owner());
  }
  if (!taken.ok()) return state_.fail(invalid_data("dsgd_start", source.rank, taken.message()), true);
  source.refuses = false;
  ++source.next;
  source.whole = source.whole || parts->whole;
  if (!in_view_) {
    ask(index);
    return enter_when_whole();
  }
  if (!then_) return;
  if (asked_in != state_.view() || !parts->whole) return ask(index);
  if (parts->digest != digest_values(state_.model, source.begin, source.end)) {
    state_.log->info("the values of " + state_.mesh->members().name(source.rank) +
                     " have changed between steps; fetches them again");
    source.next = 0;
    return ask(index);
  }
  source.done = true;
  if (!std::all_of(sources_.begin(), sources_.end(), [](const Source& one) { return one.done; })) return;
  std::exchange(then_, nullptr)();  // may destroy this
}

void StateFetcher::enter_when_whole() {
  if (std::all_of(sources_.begin(), sources_.end(), [](const Source& source) { return source.whole; }))
    enter_now();
}

void StateFetcher::enter_now() {
  if (!std::exchange(entering_, true)) enter_();
}

void StateFetcher::check_sources(const MemberList& present) {
  const auto is_present = [&](const Source& source) {
    return std::any_of(present.begin(), present.end(),
                       [&](const transport::MemberInfo& member) { return member.number == source.number; });
  };
  if (!std::all_of(sources_.begin(), sources_.end(), is_present)) enter_now();
}

// A stream begins again, from another worker.
void StateFetcher::change_source(size_t index) {
  Source& source = sources_[index];
  std::vector<int32_t> left = holders_;
  std::erase_if(left, [this](int32_t rank) { return state_.mesh->peers.has_left(rank); });
  if (left.empty()) {
    return state_.fail(
        Status(Code::kWorkerLost,
               "all workers that hold the state of the job have closed their sessions; start a new job"),
        false);
  }
  source.rank = left[index % left.size()];
  source.number = state_.mesh->members().view().members[static_cast<size_t>(source.rank)].number;
  source.next = 0;
  ask(index);
}

// From the workers that have completed all steps; the others may be copying one.
void StateFetcher::fetch_rest(const std::vector<ViewReport>& reports, const ViewReport& of,
                              transport::Time deadline, std::function<void()> then) {
  holders_.clear();
  for (int32_t rank = 0; rank < state_.size(); ++rank) {
    const ViewReport& report = reports[static_cast<size_t>(rank)];
    if (!report.learner && report.steps == of.steps) holders_.push_back(rank);
  }
  deadline_ = deadline;
  then_ = std::move(then);
  if (sources_.empty()) sources_.push_back({-1, -1, 0, trained_elements(state_.model)});
  const std::weak_ptr alive(alive_);
  for (size_t s = 0; !alive.expired() && s < sources_.size(); ++s) {
    Source& source = sources_[s];
    source.done = false;
    const auto same = std::find_if(holders_.begin(), holders_.end(), [&](int32_t rank) {
      return state_.mesh->members().view().members[static_cast<size_t>(rank)].number == source.number;
    });
    if (same == holders_.end()) {
      change_source(s);
    } else {
      source.rank = *same;
      if (!source.asked) ask(s);
    }
  }
}

void StateFetcher::source_left(int32_t rank) {
  const std::weak_ptr alive(alive_);
  for (size_t s = 0; !alive.expired() && then_ && s < sources_.size(); ++s) {
    if (sources_[s].rank == rank && !sources_[s].done) change_source(s);
  }
}

}  // namespace dsgd

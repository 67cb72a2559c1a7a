#include "core/session/state_fetcher.h"

#include <algorithm>
#include <string>
#include <variant>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/base/while_alive.h"
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
    const uint64_t from = elements * r / others, to = elements * (r + 1) / others;
    sources_.push_back({state_.mesh->members().view().members[r].number, static_cast<int32_t>(r), from, to,
                        bytes_of_elements(state_.model, from, to, !state_.step.updates_at_owner())});
  }
  state_.log->info("this worker fetches the state of " + counted(others, "worker") + " that train on");
  for (size_t s = 0; s < others; ++s) ask(s);
  if (const transport::Time due = state_.calls.deadline(options_); due != transport::kNever) {
    timer_ = state_.loop.schedule(due, if_alive(alive_, [this] {
                                    if (!in_view_ && state_.failure.ok()) on_timeout();
                                  }));
  }
  if (others == 0) enter_now();
}

void StateFetcher::stop(std::function<void(const Status&)> then) {
  state_.loop.cancel(timer_);
  sources_.clear();
  entering_ = false;
  state_.staging_queue.when_done(state_.loop.now() + state_.options.step.lease, std::move(then));
}

// The time of dsgd_start is over. stop() cancels this timer, so the start is pending here.
void StateFetcher::on_timeout() {
  if (entering_) return;
  std::vector<int32_t> not_ready;
  for (const Source& source : sources_) {
    if (source.not_ready) not_ready.push_back(source.rank);
  }
  if (not_ready.empty()) return enter_now();
  give_up_(state_.mesh->members()
               .timeout_error("dsgd_start: the other workers must first start, load their checkpoint or end "
                              "their strategy change, and have not done so",
                              state_.calls.deadline_setting(options_), not_ready)
               .with_operation("dsgd_start"));
}

// A lost worker does not answer, so the wait for an answer ends after one lease. When the stream was whole
// once, the answer may wait for the worker's next step, so there is no deadline.
void StateFetcher::ask(size_t index) {
  Source& source = sources_[index];
  const bool last = then_ != nullptr;
  source.pending = true;
  source.latest = ++questions_;
  const transport::Time due = last           ? deadline_
                              : source.whole ? transport::kNever
                                             : state_.loop.now() + state_.options.step.lease;
  const FetchState question{state_.view(), state_.rank(), source.begin, source.end,
                            source.next,   signature_,    last};
  state_.mesh->peers.call(
      source.rank, question, due,
      if_alive(alive_, [this, index, view = state_.view(), ask = source.latest](Result<Message> answer) {
        on_answer(index, view, ask, std::move(answer));
      }));
}

// Asks again after a quarter of a lease. The stream begins again then.
void StateFetcher::ask_later(size_t index, const Status& why) {
  Source& source = sources_[index];
  if (!std::exchange(source.not_ready, true))
    state_.log->info("this worker waits for " + state_.mesh->members().name(source.rank) + ": " +
                     why.message());
  source.next = 0;
  source.fetched = 0;
  source.whole = false;
  state_.loop.schedule(state_.loop.now() + state_.options.step.lease / 4,
                       if_alive(alive_, [this, index, latest = source.latest] {
                         if (!in_view_ && is_latest(index, latest)) ask(index);
                       }));
}

bool StateFetcher::is_latest(size_t index, uint64_t number) const {
  return state_.failure.ok() && index < sources_.size() && sources_[index].latest == number;
}

// The question stays the latest one until the devices have applied its answer.
void StateFetcher::on_answer(size_t index, uint64_t view, uint64_t number, Result<Message> answer) {
  if (!is_latest(index, number)) return;
  if (!answer.ok()) return on_error(index, view, answer.status());
  auto* parts = std::get_if<StateParts>(&answer.value());
  const Status valid = parts ? check_parts(parts->parts, state_.model, !state_.step.updates_at_owner())
                             : Status(Code::kInternal, "an answer of another type");
  if (!valid.ok())
    return state_.fail(invalid_data("dsgd_start", sources_[index].rank, valid.message()), true);
  const auto kept = std::make_shared<const StateParts>(std::move(*parts));
  const auto is_needed = [this, alive = std::weak_ptr(alive_), index, number] {
    return !alive.expired() && is_latest(index, number);
  };
  state_.staging_queue.write(
      then_ ? deadline_ : state_.calls.deadline(options_),
      [this, kept, is_needed] { return is_needed() ? apply(*kept) : Status(); },
      [this, kept, is_needed, index, view](const Status& applied) {
        if (!is_needed()) return;
        applied.ok() ? on_applied(index, view, *kept) : state_.fail(applied, true);
      });
}

void StateFetcher::on_error(size_t index, uint64_t view, const Status& why) {
  Source& source = sources_[index];
  source.pending = false;
  if (!in_view_ && why.code() == StateGiver::kNotNow) return ask_later(index, why);
  if (!in_view_) return enter_early(why.message());
  if (!then_) return;
  if (view != state_.view()) return ask(index);
  if (why.code() == Code::kState && source.next > 0) {
    source.next = 0;
    return ask(index);
  }
  if (state_.mesh->peers.has_left(source.rank)) return change_source(index);
  if (is_break(why) || why.code() == Code::kViewChanged) return;  // the head reports the loss or the new view
  state_.fail(why, true);
}

// Enqueues what an answer brings on all devices.
Status StateFetcher::apply(const StateParts& answer) {
  for (DeviceContext& context : state_.step.contexts()) {
    DSGD_RETURN_IF_ERROR(apply_parts(answer.parts, state_.model, context,
                                     state_.step.optimizer_state().of(context),
                                     !state_.step.updates_at_owner()));
  }
  return {};
}

void StateFetcher::on_applied(size_t index, uint64_t view, const StateParts& answer) {
  Source& source = sources_[index];
  source.pending = false;
  source.not_ready = false;
  ++source.next;
  source.whole = source.whole || answer.whole;
  size_t nbytes = 0;
  for (const StateParts::Part& part : answer.parts) nbytes += part.data.size();
  if (!in_view_) {
    source.fetched += nbytes;
    ask(index);
    if (!sources_[index].is_too_slow()) return enter_if_whole();
    return enter_early(state_.mesh->members().name(sources_[index].rank) +
                       " makes steps faster than this worker fetches their sums");
  }
  fetched_in_view_ += nbytes;
  if (!then_) return;
  if (view != state_.view() || !answer.whole) return ask(index);
  state_.staging_queue.digest_values(
      state_.model, source.begin, source.end,
      state_.in_view(if_alive(alive_, [this, index, number = source.latest,
                                       theirs = answer.digest](const Result<uint64_t>& ours) {
        if (!is_latest(index, number)) return;
        ours.ok() ? on_digests_compared(index, ours.value() == theirs) : state_.fail(ours.status(), true);
      })));
}

// All of a source's state is here. `equal`: its values have the source's digest.
void StateFetcher::on_digests_compared(size_t index, bool equal) {
  Source& source = sources_[index];
  if (!equal) {
    state_.log->info("the values of " + state_.mesh->members().name(source.rank) +
                     " have changed between steps; this worker fetches them again");
    source.next = 0;
    return ask(index);
  }
  source.done = true;
  if (!std::all_of(sources_.begin(), sources_.end(), [](const Source& one) { return one.done; })) return;
  state_.log->info("this worker has fetched all " +
                   std::string(state_.step.updates_at_owner() ? "values, " : "values and state, ") +
                   std::to_string(fetched_in_view_) + " bytes of them while the others waited");
  std::exchange(then_, nullptr)();  // may destroy this
}

void StateFetcher::enter_if_whole() {
  if (std::all_of(sources_.begin(), sources_.end(), [](const Source& source) { return source.whole; }))
    enter_now();
}

void StateFetcher::enter_early(const std::string& why) {
  if (!entering_) state_.log->debug("this worker enters the view before it has all state: " + why);
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
  if (sources_.empty()) sources_.push_back({-1, -1, 0, trained_elements(state_.model), 0});
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
      if (!source.pending) ask(s);
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

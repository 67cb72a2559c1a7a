#include "core/session/state_giver.h"

#include <algorithm>
#include <cstddef>

#include "core/base/describe.h"

namespace dsgd {

using transport::FetchState;
using transport::StateParts;

namespace {

Status not_kept() { return Status(Code::kState, "this worker has not kept what it has given; begin again"); }

}  // namespace

template <typename Matches>
void StateGiver::erase(const Status& why, Matches matches) {
  std::vector<transport::Responder> waiting;
  std::erase_if(streams_, [&](const auto& one) {
    Outgoing& outgoing = *one.second;
    if (!matches(one)) return false;
    outgoing.ended = why;
    if (outgoing.waiting) waiting.push_back(std::exchange(outgoing.waiting, {}));
    return true;
  });
  if (streams_.empty()) step_.on_update(nullptr);
  for (const transport::Responder& respond : waiting) respond(why);
}

void StateGiver::give(const std::string& worker_id, const FetchState& question, bool with_state,
                      transport::Responder respond) {
  if (question.begin > question.end || question.end > trained_elements(model_))
    return respond(Status(Code::kInvalidArgument, "the model has no such elements"));
  const Key key(worker_id, question.begin);
  if (question.next == 0) {
    if (Status begun = begin(key, question, with_state); !begun.ok()) return respond(begun);
  }
  const auto found = streams_.find(key);
  if (found == streams_.end() || found->second->next != question.next) return respond(not_kept());
  const SharedOutgoing outgoing = found->second;
  if (!question.last && outgoing->told_whole && outgoing->stream.whole()) {
    outgoing->waiting = std::move(respond);
    return;
  }
  answer(outgoing, question.last, std::move(respond));
}

Status StateGiver::begin(const Key& key, const FetchState& question, bool with_state) {
  constexpr size_t kMost = 256;
  // A worker that begins again may divide the elements in another way.
  erase(not_kept(), [&](const auto& one) {
    const StateStream& stream = one.second->stream;
    return one.first.first == key.first && stream.begin() < question.end && question.begin < stream.end();
  });
  if (streams_.size() >= kMost && !question.last)
    return Status(kNotNow, "it gives its state to " + std::to_string(kMost) + " others already");
  streams_[key] = std::make_shared<Outgoing>(model_, question.begin, question.end, with_state);
  step_.on_update([this](const StateParts::Part& update, const std::byte* sums) {
    for (const auto& [of, outgoing] : streams_) outgoing->stream.note(update, sums);
  });
  return {};
}

// A learner that asks again before the answer is made gets an error, and begins again.
void StateGiver::answer(const SharedOutgoing& outgoing, bool last, transport::Responder respond) {
  ++outgoing->next;
  staging_.read(
      [this, outgoing] {
        if (!outgoing->ended.ok()) return Status();
        DeviceContext& context = step_.contexts().front();
        return outgoing->stream.begin_answer(context, step_.optimizer_state().of(context));
      },
      [this, outgoing, last, respond = std::move(respond)](const Status& copied) {
        if (!answered_with_error(*outgoing, copied, respond)) end_answer(outgoing, last, respond);
      });
}

bool StateGiver::answered_with_error(const Outgoing& outgoing, const Status& copied,
                                     const transport::Responder& respond) {
  if (outgoing.ended.ok() && copied.ok()) return false;
  respond(outgoing.ended.ok() ? copied : outgoing.ended);
  if (!copied.ok()) fail_(copied);
  return true;
}

void StateGiver::end_answer(const SharedOutgoing& outgoing, bool last, const transport::Responder& respond) {
  const auto answer = std::make_shared<StateParts>();
  answer->parts = outgoing->stream.end_answer(step_.contexts().front());
  answer->whole = outgoing->stream.whole();
  outgoing->told_whole = outgoing->told_whole || answer->whole;
  if (!last || !answer->whole) return respond(transport::Message(std::move(*answer)));
  staging_.digest_values(model_, outgoing->stream.begin(), outgoing->stream.end(),
                         [this, outgoing, answer, respond](const Result<uint64_t>& digest) {
                           if (answered_with_error(*outgoing, digest.status(), respond)) return;
                           answer->digest = digest.value();
                           respond(transport::Message(std::move(*answer)));
                           erase(not_kept(), [&](const auto& one) { return one.second == outgoing; });
                         });
}

bool StateGiver::gives_to_any_of(const MemberList& view) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [&](const auto& one) { return rank_of(view, one.first.first) >= 0; });
}

// The step needed all workers of the view, so those that have joined have all state.
void StateGiver::step_ended(const MemberList& view) {
  if (streams_.empty()) return;
  erase(not_kept(), [&](const auto& one) { return rank_of(view, one.first.first) >= 0; });
  std::vector<SharedOutgoing> due;  // a failure may end all streams meanwhile
  for (const auto& [key, outgoing] : streams_) {
    if (outgoing->waiting && !outgoing->stream.whole()) due.push_back(outgoing);
  }
  for (const SharedOutgoing& outgoing : due) {
    if (outgoing->ended.ok()) answer(outgoing, false, std::exchange(outgoing->waiting, {}));
  }
}

void StateGiver::change_view(const MemberList& present, const MemberList& next) {
  const Status changed(Code::kViewChanged, "the workers of the job have changed");
  for (const auto& [key, outgoing] : streams_) {
    if (rank_of(next, key.first) >= 0 && outgoing->waiting) std::exchange(outgoing->waiting, {})(changed);
  }
  erase(changed, [&](const auto& one) { return rank_of(present, one.first.first) >= 0; });
}

void StateGiver::forget(const std::string& worker_id) {
  erase(not_kept(), [&](const auto& one) { return one.first.first == worker_id; });
}

void StateGiver::drop_all(const Status& why) {
  erase(why, [](const auto&) { return true; });
}

}  // namespace dsgd

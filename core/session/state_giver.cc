#include "core/session/state_giver.h"

#include <algorithm>
#include <cstddef>

#include "core/base/describe.h"

namespace dsgd {

using transport::FetchState;
using transport::StateParts;

template <typename Matches>
void StateGiver::erase(Matches matches) {
  std::erase_if(given_, matches);
  if (given_.empty()) step_.on_update(nullptr);
}

void StateGiver::give(const std::string& worker_id, const FetchState& question, bool with_state,
                      transport::Responder respond) {
  if (question.begin > question.end || question.end > trained_elements(model_))
    return respond(Status(Code::kInvalidArgument, "the model has no such elements"));
  const Key key(worker_id, question.begin);
  if (question.next == 0) {
    if (Status begun = begin(key, question, with_state); !begun.ok()) return respond(begun);
  }
  const auto found = given_.find(key);
  if (found == given_.end() || found->second->next != question.next)
    return respond(Status(Code::kState, "this worker has not kept what it has given; begin again"));
  Given& given = *found->second;
  if (!question.last && given.told_whole && given.stream.whole()) {
    given.waiting = std::move(respond);
    return;
  }
  answer(&given, question.last, respond);
  if (question.last && given.stream.whole()) erase([&](const auto& one) { return one.first == key; });
}

Status StateGiver::begin(const Key& key, const FetchState& question, bool with_state) {
  constexpr size_t kMost = 256;
  // A worker that begins again may divide the elements in another way.
  erase([&](const auto& one) {
    const StateStream& stream = one.second->stream;
    return one.first.first == key.first && stream.begin() < question.end && question.begin < stream.end();
  });
  if (given_.size() >= kMost)
    return Status(Code::kLimit, "too many parts of the state are asked for at once");
  given_[key] = std::make_unique<Given>(model_, question.begin, question.end, with_state);
  step_.on_update([this](const StateParts::Part& update, const std::byte* sums) {
    for (const auto& [of, given] : given_) given->stream.note(update, sums);
  });
  return {};
}

void StateGiver::answer(Given* given, bool last, const transport::Responder& respond) {
  StateParts answer;
  answer.parts = given->stream.take(step_.optimizer_state().on_host());
  answer.whole = given->stream.whole();
  if (last && answer.whole) answer.digest = digest_values(model_, given->stream.begin(), given->stream.end());
  given->told_whole = given->told_whole || answer.whole;
  ++given->next;
  respond(transport::Message(std::move(answer)));
}

bool StateGiver::gives_to_any_of(const MemberList& view) const {
  return std::any_of(given_.begin(), given_.end(),
                     [&](const auto& one) { return rank_of(view, one.first.first) >= 0; });
}

// The step needed all workers of the view, so those that have joined have all state.
void StateGiver::step_ended(const MemberList& view) {
  if (given_.empty()) return;
  erase(
      [&](const auto& one) { return one.second->stream.overflown() || rank_of(view, one.first.first) >= 0; });
  for (const auto& [key, given] : given_) {
    if (given->waiting && !given->stream.whole())
      answer(given.get(), false, std::exchange(given->waiting, {}));
  }
}

void StateGiver::change_view(const MemberList& present, const MemberList& next) {
  const Status changed(Code::kViewChanged, "the workers of the job have changed");
  for (const auto& [key, given] : given_) {
    if (rank_of(next, key.first) >= 0 && given->waiting) std::exchange(given->waiting, {})(changed);
  }
  erase([&](const auto& one) { return rank_of(present, one.first.first) >= 0; });
}

void StateGiver::forget(const std::string& worker_id) {
  erase([&](const auto& one) { return one.first.first == worker_id; });
}

void StateGiver::drop_all(const Status& why) {
  for (const auto& [key, given] : std::exchange(given_, {})) {
    if (given->waiting) given->waiting(why);
  }
  step_.on_update(nullptr);
}

}  // namespace dsgd

// Gives this worker's state to workers that join, while this one trains on: a stream of parts for each range
// of elements that a learner asks for (core/step/state_stream.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/model/model.h"
#include "core/step/staging_queue.h"
#include "core/step/state_stream.h"
#include "core/step/step.h"
#include "transport/messages.h"
#include "transport/network.h"

namespace dsgd {

// On the loop.
class StateGiver {
 public:
  using MemberList = std::vector<transport::MemberInfo>;
  static constexpr Code kNotNow = Code::kWaitTimeout;  // answer to a learner in no view yet: ask again later

  // `fail` is called when a device of this worker has failed.
  StateGiver(const Model& model, Step& step, StagingQueue& staging, std::function<void(const Status&)> fail)
      : model_(model), step_(step), staging_(staging), fail_(std::move(fail)) {}
  // Answers with the next parts of the stream that begins at the question's first element. The first question
  // (`next` is 0) begins the stream. A question with `last` is answered at once. Another one waits for the
  // next step if the learner has received the whole stream once and there is nothing new. `with_state`: as in
  // StateStream.
  void give(const std::string& worker_id, const transport::FetchState& question, bool with_state,
            transport::Responder respond);
  // Returns whether there is a stream to a worker of this view.
  bool gives_to_any_of(const MemberList& view) const;
  void step_ended(const MemberList& view);
  // Ends the streams to workers of the present view. Other streams go on. Waiting questions of workers that
  // enter `next` are answered with kViewChanged.
  void change_view(const MemberList& present, const MemberList& next);
  void forget(const std::string& worker_id);
  void drop_all(const Status& why);

 private:
  struct Outgoing {
    Outgoing(const Model& model, uint64_t begin, uint64_t end, bool with_state)
        : stream(model, begin, end, with_state) {}
    StateStream stream;
    uint64_t next = 0;             // answer
    bool told_whole = false;       // the learner knows that it was whole once
    transport::Responder waiting;  // for the next step
    Status ended;                  // not OK: the stream has ended, and a pending answer fails with this error
  };
  using Key = std::pair<std::string, uint64_t>;  // worker id, first element
  using SharedOutgoing = std::shared_ptr<Outgoing>;

  Status begin(const Key& key, const transport::FetchState& question, bool with_state);
  template <typename Matches>
  void erase(const Status& why, Matches matches);
  void answer(const SharedOutgoing& outgoing, bool last, transport::Responder respond);
  void end_answer(const SharedOutgoing& outgoing, bool last, const transport::Responder& respond);
  // If the device has failed or the stream has ended meanwhile, answers with the error and returns true. A
  // failed device also fails this worker.
  bool answered_with_error(const Outgoing& outgoing, const Status& copied,
                           const transport::Responder& respond);

  const Model& model_;
  Step& step_;
  StagingQueue& staging_;
  const std::function<void(const Status&)> fail_;
  std::map<Key, SharedOutgoing> streams_;  // those to one worker do not overlap
};

}  // namespace dsgd

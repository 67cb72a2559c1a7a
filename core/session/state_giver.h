// Gives this worker's state to workers that join, while this one trains on: a stream of parts for each range
// of elements that a learner asks for (core/step/state_stream.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/model/model.h"
#include "core/step/state_stream.h"
#include "core/step/step.h"
#include "transport/messages.h"
#include "transport/network.h"

namespace dsgd {

// On the loop. The replicas are on the host.
class StateGiver {
 public:
  using MemberList = std::vector<transport::MemberInfo>;
  static constexpr Code kNotNow = Code::kWaitTimeout;  // answer to a learner in no view yet: ask again later

  StateGiver(const Model& model, Step& step) : model_(model), step_(step) {}
  // Answers with the next parts of the stream that begins at the question's first element. The first question
  // begins the stream. Once the learner knows that it was whole, a question that finds nothing new is
  // answered after a step, unless it is the last one. `with_state`: as in StateStream.
  void give(const std::string& worker_id, const transport::FetchState& question, bool with_state,
            transport::Responder respond);
  // Whether a worker of this view waits for state.
  bool gives_to_any_of(const MemberList& view) const;
  void step_ended(const MemberList& view);
  // Ends the streams to workers of the present view. Those to workers that enter `next`, or have not entered
  // a view yet, go on.
  void change_view(const MemberList& present, const MemberList& next);
  void forget(const std::string& worker_id);
  void drop_all(const Status& why);

 private:
  struct Given {
    Given(const Model& model, uint64_t begin, uint64_t end, bool with_state)
        : stream(model, begin, end, with_state) {}
    StateStream stream;
    uint64_t next = 0;             // answer
    bool told_whole = false;       // the learner knows that it was whole once
    transport::Responder waiting;  // for the next step
  };
  using Key = std::pair<std::string, uint64_t>;  // worker id, first element

  Status begin(const Key& key, const transport::FetchState& question, bool with_state);
  template <typename Matches>
  void erase(Matches matches);
  void answer(Given* given, bool last, const transport::Responder& respond);

  const Model& model_;
  Step& step_;
  std::map<Key, std::unique_ptr<Given>> given_;  // those to one worker do not overlap
};

}  // namespace dsgd

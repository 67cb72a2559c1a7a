// The state of a worker that joins (a learner). It fetches values and optimizer state from all workers of the
// present view while they train on, a part of the elements from each, as streams (core/step/state_stream.h):
//
//   begin        before it is in a view: asks each worker for its part. The others give the next parts, or
//                answer kNotNow where all workers would fail in a new view
//   enter_now    each stream was whole once, one has failed or is slower than the steps of the others, or the
//                time of dsgd_start is over: the engine asks the head for a view
//   fetch_rest   in the view, whose workers make no step without it: fetches what is left, and compares
//                digests of the values, which the hosts may have changed
//
// A stream that has failed begins again in fetch_rest(), from a worker that has completed all steps. So a
// failure before the view costs only time: the others wait longer in the view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/session/engine_state.h"
#include "transport/messages.h"
#include "transport/payloads.h"

namespace dsgd {

// On the loop. The mesh is open.
class StateFetcher {
 public:
  using MemberList = std::vector<transport::MemberInfo>;

  // `enter`: asks the head for a view. `give_up`: ends dsgd_start with an error, because its time is over and
  // some workers are not ready yet.
  StateFetcher(EngineState& state, std::function<void()> enter, std::function<void(const Status&)> give_up)
      : state_(state), enter_(std::move(enter)), give_up_(std::move(give_up)) {}
  // `signature`: digest of this worker's signature, without the learning rate. `options`: of dsgd_start.
  void begin(uint64_t signature, const CallOptions& options);
  // dsgd_start has failed. Calls `then` when nothing more is written to the replicas, or with an error after
  // a lease; begin() may follow.
  void stop(std::function<void(const Status&)> then);
  // Asks for a view at once if `present` lacks a worker whose state this one fetches.
  void check_sources(const MemberList& present);
  void entered_view() { in_view_ = true; }
  // `of`: the report of a worker that has completed all steps. `then`, called once all state is here, may
  // destroy the fetcher.
  void fetch_rest(const std::vector<transport::ViewReport>& reports, const transport::ViewReport& of,
                  transport::Time deadline, std::function<void()> then);
  // The view changes. Answers that come are still applied.
  void stop_fetching_rest() { then_ = nullptr; }
  void source_left(int32_t rank);

 private:
  struct Source {
    int32_t number;          // of the worker, in the job
    int32_t rank;            // in the present view
    uint64_t begin, end;     // elements
    size_t nbytes;           // of these elements
    uint64_t next = 0;       // answer of the stream
    uint64_t latest = 0;     // number of the latest question; answers to earlier ones are not applied
    size_t fetched = 0;      // bytes of the stream before the view
    bool pending = false;    // an answer is awaited, or being applied
    bool whole = false;      // all of it has come once
    bool not_ready = false;  // it answers kNotNow
    bool done = false;       // in fetch_rest()
    // So much has come of a stream that was never whole that it must have begun again and again: the worker
    // makes steps faster than this one fetches their sums.
    bool is_too_slow() const {
      constexpr size_t kMostTimes = 3;  // that the elements travel
      return !whole && fetched / kMostTimes >= nbytes;
    }
  };

  void on_timeout();
  // `index`: of a source. `number`: of a question. `view`: the one in which it was asked.
  void ask(size_t index);
  void ask_later(size_t index, const Status& why);
  void on_answer(size_t index, uint64_t view, uint64_t number, Result<transport::Message> answer);
  void on_error(size_t index, uint64_t view, const Status& why);
  bool is_latest(size_t index, uint64_t number) const;  // the answer to this question is still needed
  Status apply(const transport::StateParts& answer);
  void on_applied(size_t index, uint64_t view, const transport::StateParts& answer);
  void on_digests_compared(size_t index, bool equal);
  void enter_if_whole();
  void enter_early(const std::string& why);
  void enter_now();
  void change_source(size_t index);

  EngineState& state_;
  const std::function<void()> enter_;
  const std::function<void(const Status&)> give_up_;
  std::vector<Source> sources_;  // empty: it fetches all in the view, from one worker
  uint64_t questions_ = 0;
  transport::TimerId timer_ = 0;  // of on_timeout()
  CallOptions options_;           // of dsgd_start
  uint64_t signature_ = 0;
  bool entering_ = false;  // the head was asked for a view
  bool in_view_ = false;
  uint64_t fetched_in_view_ = 0;  // bytes
  // Of fetch_rest().
  std::vector<int32_t> holders_;  // ranks that have completed all steps
  transport::Time deadline_{};
  std::function<void()> then_;  // null: it has not begun in this view
  std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace dsgd

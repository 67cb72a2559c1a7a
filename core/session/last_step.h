// The last step of workers that close their sessions. Where views change, a worker that closes waits until
// all others have completed as many steps as it has. Else they could repeat its last step without it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/mesh/peers.h"
#include "transport/loop.h"

namespace dsgd {

// On the loop.
class LastStep {
 public:
  // `verdict_due`: as in Engine::use_verdict_due().
  LastStep(transport::Loop& loop, transport::Duration lease, std::shared_ptr<Log> log,
           std::function<transport::Time(transport::Time)> verdict_due)
      : loop_(loop), lease_(lease), log_(std::move(log)), verdict_due_(std::move(verdict_due)) {}

  // This worker closes its session after `steps` steps. Waits for the others until the deadline at the
  // latest, and then calls `then`; at once if the deadline has passed. ask() asks them.
  void await(uint64_t steps, transport::Time deadline, std::function<void()> then);
  void hasten(transport::Time deadline);  // brings the deadline forward
  // If the wait has not ended: asks all others of the view whether they have completed the `steps` steps of
  // this worker. Called again in each view, when a worker has left, and when this worker completes a step.
  void ask(Peers& peers, uint64_t steps);
  // Whether a wait for so many steps has ended, in time or not.
  bool has_awaited(uint64_t steps) const { return awaited_steps_ >= steps; }
  void forget_answers();  // the view changes; ask() follows in the new one
  void end_wait();
  // The others that have not answered, ascending; empty: it does not wait, or has not asked in this view.
  std::vector<int32_t> missing() const { return awaited_ ? awaited_->missing : std::vector<int32_t>(); }

  // Another worker closes its session and asks for an answer when `steps` steps are completed here.
  // A later question of the same worker takes the place of an earlier one.
  void on_asked(int32_t rank, uint64_t steps, transport::Responder respond);
  void answer_questions(uint64_t completed);  // steps
  void reject_questions(const Status& why);

 private:
  struct Awaited {
    uint64_t steps;
    transport::Time deadline;
    std::function<void()> then;
    std::vector<int32_t> missing = {};  // ranks
    transport::Time asked_at = {};      // 0: not in this view yet
    transport::TimerId timer = 0;
  };
  void limit_wait();

  transport::Loop& loop_;
  const transport::Duration lease_;
  const std::shared_ptr<Log> log_;
  const std::function<transport::Time(transport::Time)> verdict_due_;
  std::optional<Awaited> awaited_;
  uint64_t last_ask_ = 0;  // answers to earlier ones do not count
  uint64_t awaited_steps_ = 0;
  struct Question {
    uint64_t steps = 0;
    transport::Responder respond = {};
  };
  std::map<int32_t, Question> questions_;  // by rank in the present view
  std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace dsgd

// Describes what a call of this worker waits for, for stall warnings and for waits that time out.

#include <algorithm>
#include <string>

#include "core/base/text.h"
#include "core/session/engine.h"
#include "transport/schema/codec.h"

namespace dsgd {

// `what`: the thing that the workers `ranks` have not done, such as "not sent its report".
WaitReport EngineState::report_of(const std::vector<int32_t>& ranks, const std::string& operation,
                                  const std::string& what) const {
  if (ranks.empty()) return {};
  const std::string text = mesh->members().names(ranks) + (ranks.size() == 1 ? " has " : " have ") + what;
  return {Status(Code::kWaitTimeout, text)
              .with_rank(ranks.front(), mesh->members().host_of(ranks.front()))
              .with_operation(operation),
          ranks};
}

WaitReport EngineState::wait_report(uint64_t call) const {
  if (const std::string name = calls.fetching(call); !name.empty()) {
    return {Status(Code::kWaitTimeout,
                   "this worker has not copied its buffer from its GPU yet: other work in `stream`, or an "
                   "earlier collective, may not have ended")
                .with_rank(rank(), mesh ? mesh->members().host_of(rank()) : std::string())
                .with_operation(name),
            {}};
  }
  const bool is_step = step.running() && step.call() == call;
  const UnmarkedGradients unmarked = is_step ? step.unmarked() : UnmarkedGradients();
  const Operations::WaitedPeers peers =
      mesh ? mesh->operations.waited_peers(call) : Operations::WaitedPeers();
  if (unmarked.empty() && peers.ranks.empty()) return {};
  std::string text;
  if (!unmarked.empty()) text = unmarked.text + UnmarkedGradients::kRemedy;
  if (!peers.ranks.empty()) {
    const bool one = peers.ranks.size() == 1;
    const std::string names = mesh->members().names(peers.ranks);
    const std::string parameters = is_step ? step.parameters_text(peers.operations) : std::string();
    if (!text.empty()) text += "; ";
    if (!parameters.empty()) {
      text += names + (one ? " has" : " have") + " not sent the gradients of " + parameters;
    } else if (peers.first) {
      text += names + (one ? " has" : " have") + " not made this call";
    } else {
      text += "data of " + names + " is still to come";
    }
  }
  const int32_t first = unmarked.empty() ? peers.ranks.front() : rank();
  return {Status(Code::kWaitTimeout, text)
              .with_rank(first, mesh ? mesh->members().host_of(first) : std::string())
              .with_operation(is_step ? step.name() : peers.name)
              .with_parameter(unmarked.parameter),
          peers.ranks};
}

transport::Progress Engine::progress() const {
  using Activity = transport::Progress::Activity;
  transport::Progress progress;
  progress.present_view = view();
  progress.steps = state_.next_step;
  progress.holds_state = state_.started;
  state_.stalls.each([&](uint64_t ticket, transport::Duration open, const WaitReport& report) {
    // A report that names only this rank means that the host or a GPU of this worker is late.
    const bool for_itself = report.ranks.empty() && report.text.rank() == rank();
    const Activity activity = !report.known() ? Activity::kBusy
                              : for_itself    ? Activity::kComputes
                                              : Activity::kWaits;
    if (progress.call != 0 && activity <= progress.activity) return;
    progress.activity = activity;
    progress.call = ticket;
    progress.open = open;
    progress.operation = cut(report.text.operation(), transport::kMaxWaitBytes);
    progress.waiting = cut(report.text.message(), transport::kMaxWaitBytes);
    progress.waits_for = report.ranks;
    progress.waits_for.resize(std::min(report.ranks.size(), transport::kMaxWaitedRanks));
  });
  return progress;
}

}  // namespace dsgd

// Describes what a call of this worker waits for, for stall warnings and for waits that time out.

#include <string>

#include "core/session/engine.h"

namespace dsgd {

Status Engine::waiting(uint64_t call) const {
  const bool is_step = step_.running() && step_.call() == call;
  const UnmarkedGradients unmarked = is_step ? step_.unmarked() : UnmarkedGradients();
  const Operations::Missing peers = mesh_ ? mesh_->operations.waiting(call) : Operations::Missing();
  if (unmarked.empty() && peers.ranks.empty()) return {};
  std::string text;
  if (!unmarked.empty()) text = unmarked.text + UnmarkedGradients::kRemedy;
  if (!peers.ranks.empty()) {
    const bool one = peers.ranks.size() == 1;
    const std::string names = mesh_->members().names(peers.ranks);
    const std::string parameters = is_step ? step_.parameters_text(peers.operations) : std::string();
    if (!text.empty()) text += "; ";
    if (!parameters.empty()) {
      text += names + (one ? " has" : " have") + " not sent the gradients of " + parameters;
    } else if (peers.first) {
      text += names + (one ? " has" : " have") + " not called it";
    } else {
      text += "data of " + names + " is still to come";
    }
  }
  const int32_t first = unmarked.empty() ? peers.ranks.front() : rank();
  return Status(Code::kWaitTimeout, text)
      .with_rank(first,
                 mesh_ ? mesh_->members().view().members[static_cast<size_t>(first)].host : std::string())
      .with_operation(is_step ? step_.name() : peers.name)
      .with_parameter(unmarked.parameter);
}

}  // namespace dsgd

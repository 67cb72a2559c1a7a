#include "core/session/checkpoints.h"

#include <algorithm>

#include "core/base/describe.h"
#include "core/mesh/channels.h"
#include "transport/schema/codec.h"

namespace dsgd {

Checkpoints::SharedCall Checkpoints::new_call(Kind kind, const std::string& folder,
                                              const CallOptions& options) const {
  auto checkpoint = std::make_shared<CheckpointCall>();
  checkpoint->kind = kind;
  checkpoint->folder = folder;
  checkpoint->options = options;
  checkpoint->options.channel = kCheckpointChannel;
  checkpoint->deadline = state_.calls.deadline(options);
  checkpoint->limit = state_.calls.deadline_setting(options);
  return checkpoint;
}

Status Checkpoints::begin(const SharedCall& checkpoint) {
  // First, as on the other workers: a call that a new view fails takes no number.
  DSGD_RETURN_IF_ERROR(state_.admit_call());
  if (!queue_.files())
    return Status(Code::kUnsupported, "checkpoints need files, which this environment does not have");
  if (!checkpoint->expired.ok()) {
    state_.reject_next_call(kCheckpointChannel, kind_name(checkpoint->kind), checkpoint->expired);
    return checkpoint->expired;
  }
  checkpoint->call = state_.calls.begin(&checkpoint->done, checkpoint->options);
  checkpoint->call->deadline = checkpoint->deadline;
  return {};
}

Status Checkpoints::first_error(const Reports& reports, Kind kind, const Check& check) const {
  for (size_t index = 0; index < reports.size(); ++index) {
    const Status why = check(reports[index]);
    if (why.ok()) continue;
    if (!state_.mesh) return why;
    const int32_t rank = static_cast<int32_t>(index);
    return Status(why.code(), state_.mesh->members().name(rank) + ": " + why.message())
        .with_rank(rank, state_.mesh->members().host_of(rank))
        .with_operation(kind_name(kind));
  }
  return {};
}

void Checkpoints::exchange_reports(const SharedCall& checkpoint, std::function<void(const Reports&)> then) {
  const auto take = [this, checkpoint, then = std::move(then)](const Reports& reports) {
    const auto lacks_it = [](const auto& one) { return one.failure.code() == Code::kNotFound; };
    const bool some_find_it =
        checkpoint->kind == Kind::kLoad && !std::all_of(reports.begin(), reports.end(), lacks_it);
    const auto failure = [&](const auto& one) {
      if (!some_find_it || !lacks_it(one)) return one.failure;
      return Status(Code::kMismatch, one.failure.message() +
                                         "; others find a checkpoint; give all workers one folder on a file "
                                         "system that they share");
    };
    const Status failed = first_error(reports, checkpoint->kind, failure);
    failed.ok() ? then(reports) : queue_.end(checkpoint, failed);
  };
  if (!state_.failure.ok()) return queue_.end(checkpoint, state_.failure);
  if (!state_.mesh) return take({checkpoint->mine});
  state_.calls.exchange(
      checkpoint->call, checkpoint->kind, checkpoint->exchanges++, transport::encode(checkpoint->mine),
      [this, checkpoint, take](const Status& status, const Calls::Parts& all) {
        if (state_.defer_to_reports(*checkpoint->call)) return;
        if (!status.ok()) return queue_.end(checkpoint, status);
        Reports reports;
        for (size_t rank = 0; rank < all.size(); ++rank) {
          auto report = transport::decode_checkpoint_report(all[rank]);
          if (!report.ok())
            return queue_.end(checkpoint,
                              invalid_data(kind_name(checkpoint->kind), static_cast<int32_t>(rank),
                                           "an invalid report: " + report.status().message()));
          reports.push_back(std::move(report).value());
        }
        take(reports);
      });
}

void Checkpoints::change_view(const Status& why) {
  queue_.fail(why, [this](const CheckpointCall& one) { return one.call && state_.has_prepared(*one.call); });
}

std::vector<size_t> Checkpoints::states_by_parameter() const {
  std::vector<size_t> states;
  for (const auto& parameter : state_.model.parameters)
    states.push_back(parameter->trained ? state_.model.states_of(*parameter) : 0);
  return states;
}

}  // namespace dsgd

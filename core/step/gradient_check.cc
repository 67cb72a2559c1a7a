#include "core/step/gradient_check.h"

#include <algorithm>
#include <map>
#include <string>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "transport/schema/codec.h"

namespace dsgd {
namespace {

using transport::GradientReport;

// By parameter.
std::map<uint32_t, NonFinite> count_all(const StepState& state) {
  std::map<uint32_t, NonFinite> found;
  for (size_t b = 0; b < state.plan.size(); ++b) {
    const BucketBuffers& buffers = state.buffers[b];
    const auto add = [&](const NonFinite* records) {
      for (size_t i = 0; i < state.plan[b].pieces.size(); ++i) {
        const Piece& piece = state.plan[b].pieces[i];
        if (records[i].count > 0) found[piece.parameter].add(records[i], piece.begin);
      }
    };
    add(buffers.non_finite.data());
    for (const DeviceBuffers& on_device : buffers.devices) {
      if (on_device.host_non_finite) add(static_cast<const NonFinite*>(on_device.host_non_finite.get()));
    }
  }
  return found;
}

// "rank 1 (...): 3 elements of the gradient of parameter 'w' (the first at index 17), 1 element of ..."
std::string report_text(const StepState& state, int32_t rank, const GradientReport& report) {
  std::string text = (state.mesh ? state.mesh->members().name(rank) : "rank " + std::to_string(rank)) + ": ";
  uint64_t rest = report.count;
  for (size_t i = 0; i < report.named.size(); ++i) {
    const GradientReport::OfParameter& of = report.named[i];
    text += (i == 0 ? "" : ", ") + counted(of.count, "element") + " of the gradient of parameter '" +
            state.model.parameters[of.parameter]->name + "' (the first at index " + std::to_string(of.first) +
            ")";
    rest -= std::min(rest, of.count);
  }
  if (rest > 0) {
    text += " and " + counted(rest, "element") + " of the gradients of " +
            std::to_string(report.parameters - report.named.size()) + " more";
  }
  return text;
}

bool is_valid(const StepState& state, const GradientReport& report) {
  return (report.count == 0 || !report.named.empty()) && report.named.size() <= report.parameters &&
         std::all_of(report.named.begin(), report.named.end(), [&](const GradientReport::OfParameter& of) {
           return of.parameter < state.model.parameters.size();
         });
}

}  // namespace

std::vector<std::byte> make_gradient_report(const StepState& state) {
  GradientReport report;
  for (const auto& [parameter, found] : count_all(state)) {
    report.count += found.count;
    ++report.parameters;
    if (report.named.size() < transport::kMaxNamedGradients)
      report.named.push_back({parameter, found.count, found.first});
  }
  return transport::encode(report);
}

Status read_gradient_reports(StepState* state, const Group* group,
                             const std::vector<std::vector<std::byte>>& reports) {
  constexpr size_t kDescribed = 4;  // workers in the text
  StepResult& result = state->result;
  size_t workers = 0;
  for (size_t index = 0; index < reports.size(); ++index) {
    const int32_t rank = group ? group->ranks[index] : 0;
    const Result<GradientReport> decoded = transport::decode_gradient_report(reports[index]);
    if (!decoded.ok() || !is_valid(*state, decoded.value()))
      return invalid_data(state->name(), rank, "an invalid gradient report");
    const GradientReport& report = decoded.value();
    if (report.count == 0) continue;
    if (result.nonfinite == 0) {
      result.nonfinite_rank = rank;
      result.nonfinite_parameter = report.named.front().parameter;
    }
    result.nonfinite += static_cast<int64_t>(report.count);
    if (++workers <= kDescribed)
      result.nonfinite_text += (workers == 1 ? "" : "; ") + report_text(*state, rank, report);
  }
  if (workers > kDescribed)
    result.nonfinite_text += "; and gradients of " + std::to_string(workers - kDescribed) + " more workers";
  return {};
}

Status non_finite_failure(const StepState& state) {
  const StepResult& result = state.result;
  const int32_t rank = result.nonfinite_rank;
  return Status(Code::kNonFinite,
                state.name() + ": gradients are not finite (nonfinite = fail): " + result.nonfinite_text +
                    "; nothing has changed, and the next step may go on with other gradients")
      .with_rank(rank, state.mesh ? state.mesh->members().host_of(rank) : "")
      .with_operation(state.name())
      .with_parameter(state.model.parameters[result.nonfinite_parameter]->name);
}

}  // namespace dsgd

#include "core/session/view_decision.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "transport/schema/codec.h"

namespace dsgd {

using transport::ViewReport;

Result<std::vector<ViewReport>> decode_reports(const std::vector<std::vector<std::byte>>& encoded) {
  std::vector<ViewReport> reports;
  for (const std::vector<std::byte>& bytes : encoded) {
    const auto invalid = [&](const std::string& why) {
      return invalid_data("", static_cast<int32_t>(reports.size()),
                          "an invalid report about a change of view: " + why);
    };
    auto report = transport::decode_view_report(bytes);
    if (!report.ok()) return invalid(report.status().message());
    if (report->calls.size() != kChannels) return invalid(counted(report->calls.size(), "channel"));
    reports.push_back(std::move(report).value());
  }
  return reports;
}

Result<ViewDecision> decide(const std::vector<ViewReport>& reports, const Members& members,
                            const Status& cause) {
  const auto lost = [&](const std::string& consequence) {
    return Status(Code::kWorkerLost, cause.message() + "; " + consequence + "; start the job again")
        .with_rank(cause.rank(), cause.host());
  };
  std::pair<uint64_t, uint64_t> last;  // number of changes, and the call of the last one
  for (const ViewReport& report : reports)
    if (!report.learner) last = std::max(last, {report.strategy_version, report.applied_change});
  const auto only_prepared = [last](const ViewReport& report) {
    return !report.learner && report.prepared_change > 0 && report.prepared_change == last.second &&
           report.strategy_version < last.first;
  };
  if (std::any_of(reports.begin(), reports.end(), only_prepared)) {
    ViewDecision decision;
    decision.apply = last.second;
    return decision;
  }
  const auto behind = [](const ViewReport& a, const ViewReport& b) {
    return std::pair(!a.learner, a.steps) < std::pair(!b.learner, b.steps);
  };
  const auto source = std::max_element(reports.begin(), reports.end(), behind);  // the lowest of several
  if (source->learner) return lost("no worker that is left holds the values");
  ViewDecision decision;
  decision.source = static_cast<int32_t>(source - reports.begin());
  for (int32_t rank = 0; rank < static_cast<int32_t>(reports.size()); ++rank) {
    const ViewReport& report = reports[static_cast<size_t>(rank)];
    const bool alike =
        report.steps + 1 >= source->steps && report.strategy_version == source->strategy_version;
    if (!alike && !report.learner) {
      const bool joined = cause.code() == Code::kViewChanged;
      return lost((joined ? "a worker joined" : "it was lost") +
                  std::string(" while the workers changed the strategy or loaded a checkpoint, and ") +
                  members.name(rank) + " has not ended that");
    }
    const bool differs = report.learner && (report.signature != source->signature ||
                                            report.signature_length != source->signature_length);
    if (differs) {
      decision.different.push_back(rank);
    } else if (report.learner || report.steps < source->steps) {
      decision.copiers.push_back(rank);
      if (report.learner) decision.learners.push_back(rank);
    }
    decision.all_started = decision.all_started && (report.started || report.learner);
    for (size_t channel = 0; channel < kChannels; ++channel)
      decision.calls[channel] = std::max(decision.calls[channel], report.calls[channel]);
    decision.replicas += report.replicas;
  }
  return decision;
}

}  // namespace dsgd

// Gradients that are not finite, where the key `nonfinite` asks for a check. The sums over a worker's
// replicas count the elements (BucketBuffers::non_finite). When a worker has summed its last bucket, it sends
// all others one report, which travels beside the last buckets. Nothing changes before all reports have come.
// All workers have the same reports, so all take the same action and report the same error.
#pragma once

#include <cstddef>
#include <vector>

#include "core/group/group.h"
#include "core/step/step_state.h"

namespace dsgd {

// This worker's report. All of its buckets are summed, and their records are on the host.
std::vector<std::byte> make_gradient_report(const StepState& state);
// Reads the reports of the group's workers, by index; `group` null: the only worker's. Sets the result's
// fields about what is not finite.
Status read_gradient_reports(StepState* state, const Group* group,
                             const std::vector<std::vector<std::byte>>& reports);
// With nonfinite=fail, after a report that is not empty.
Status non_finite_failure(const StepState& state);

}  // namespace dsgd

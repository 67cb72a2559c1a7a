// The step's header: what all workers must agree on before anything changes, and the weights that the mean
// needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/group/group.h"
#include "core/step/step_state.h"

namespace dsgd {

struct HeaderDigests {
  uint64_t strategy_version;  // changes of the plan, and loaded checkpoints
  uint64_t plan;
  uint64_t values;  // of a part of the values (value_comparison.h)
};
std::vector<std::byte> make_header(const StepState& state, const HeaderDigests& digests);

struct HeaderVerdict {
  // The difference, if a further exchange can name it better than `status` does.
  enum class Difference { kOther, kSettings, kValues };

  HeaderVerdict() = default;
  HeaderVerdict(Status why, Difference what = Difference::kOther)
      : status(std::move(why)), difference(what) {}
  Status status;  // OK: all agree
  Difference difference = Difference::kOther;
};
// Compares the headers of the group's workers, by rank; `group` null: the only worker's. Sets total_weight,
// contributing_replicas, drawn, and the result's weight, stop and all_done.
HeaderVerdict read_headers(StepState* state, const Group* group,
                           const std::vector<std::vector<std::byte>>& headers);

// The settings are too long for each step's header, which has their digest. After a difference these texts
// are exchanged; settings_difference() returns the error that names the setting.
std::string settings_text(const Model& model);
Status settings_difference(const std::string& step, const Group& group,
                           const std::vector<std::vector<std::byte>>& texts);

}  // namespace dsgd

// The signature of a worker: all that must be equal on all workers, as text. Workers compare digests of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/model/model.h"
#include "core/session/engine_options.h"
#include "core/strategy/plan.h"
#include "transport/base/status.h"

namespace dsgd {

// One line for each setting, so that the first unequal line names the setting to correct. `strategy`: a line
// about it. `with_rate`: with the learning rate, which the workers of a running job may have changed.
// `chunk_bytes`: of the mesh; 0: there is none.
std::string describe_settings(const EngineOptions& options, const Model& model, const std::string& strategy,
                              bool with_rate, size_t chunk_bytes);
// The plan in one line; or why there is none.
std::string describe_plan(const Result<Plan>& plan, const StrategySpec& strategy);
uint64_t digest_of(const std::string& signature);
// The error of dsgd_start on all workers. `difference`: of first_difference(). `rank`: the worker that
// differs.
Status signature_mismatch(const std::string& difference, int32_t rank);

}  // namespace dsgd

// dsgd_step_result between the boundary's sized struct and core's.
#pragma once

#include "capi/src/call.h"
#include "core/session/operation.h"
#include "dsgd/dsgd.h"

namespace dsgd::capi {

Status check_step_result(const Call& call, const dsgd_step_result* result);
void write_step_result(dsgd_step_result* target, const StepResult& result);

}  // namespace dsgd::capi

// One job of `dsgd run`: its head, unless that is elsewhere, and its workers on this node.
#pragma once

#include <cstdint>
#include <vector>

#include "capi/tools/run.h"
#include "capi/tools/run_words.h"
#include "capi/tools/supervisor.h"

namespace dsgd_tool {

// Checks rules between keys: starts a head, which does the checks and warns, and stops it at once.
void check_settings_with_head(std::vector<Setting> settings);

// Starts a head, unless there is one elsewhere, and the workers. Returns when all have ended. If the job goes
// on after a worker has failed, starts a replacement and takes 1 from `restarts`; adds 1 again for each
// replacement that never joined the job. If the head is here, starts and stops workers as `dsgd scale` asks.
int run_job(const RunOptions& options, const std::vector<CommandGroup>& groups, std::vector<Setting> settings,
            Supervisor* supervisor, uint32_t* restarts);

}  // namespace dsgd_tool

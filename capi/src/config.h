// dsgd_config: the values of one configuration, where its sessions' logs go, and what the host has
// registered.
#pragma once

#include "capi/src/handle.h"
#include "capi/src/log.h"
#include "core/config/config.h"
#include "core/strategy/strategies.h"
#include "dsgd/dsgd.h"

struct dsgd_config : dsgd::capi::HandleOf<dsgd_config> {
  static constexpr const char* kName = "dsgd_config";

  dsgd::Config values;
  dsgd::capi::LogHook hook;
  dsgd::Registered registered;
};

namespace dsgd::capi {

// Defaults and the environment as it is now.
Config environment_config();

}  // namespace dsgd::capi

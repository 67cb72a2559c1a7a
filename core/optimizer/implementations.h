// Shared by the optimizers in this folder only.
#pragma once

#include <memory>

#include "core/config/config.h"
#include "core/optimizer/optimizer.h"

namespace dsgd {

Result<std::unique_ptr<Optimizer>> make_sgd(Options options);
Result<std::unique_ptr<Optimizer>> make_adam(Options options, bool decoupled_decay);

}  // namespace dsgd

// Shared by the optimizers in this folder only.
#pragma once

#include <memory>

#include "core/config/config.h"
#include "core/optimizer/optimizer.h"

namespace dsgd {

std::unique_ptr<Optimizer> make_sgd();
std::unique_ptr<Optimizer> make_adam(bool decoupled_decay);

}  // namespace dsgd

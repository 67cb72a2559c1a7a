// What the optimizers share; for this folder only.
#pragma once

#include <memory>
#include <span>

#include "core/config/config.h"
#include "core/optimizer/optimizer.h"

namespace dsgd {

Result<std::unique_ptr<Optimizer>> make_sgd(Options options);
Result<std::unique_ptr<Optimizer>> make_adam(Options options, bool decoupled_decay);

// The arguments of Optimizer::apply but the element type, to hand them on.
struct ApplyArguments {
  size_t count;
  uint64_t updates;
  const ParameterSettings& settings;
  const void* gradient;
  const void* value_in;
  void* value_out;
  std::span<const void* const> state_in;
  std::span<void* const> state_out;
};

// The outputs of an update that changes nothing.
void keep(DType dtype, size_t count, const void* value_in, void* value_out,
          std::span<const void* const> state_in, std::span<void* const> state_out);

}  // namespace dsgd

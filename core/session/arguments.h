// Checks of arguments that several calls have in common.
#pragma once

#include <string>

#include "transport/base/status.h"

namespace dsgd {

// Checks a contribution weight: 0, or within bounds so that c*g and its sums do not overflow float32.
Status check_weight(double weight);

// Checks the name of a parameter or an object (`what`): it appears in messages and logs of all workers.
Status check_name(const std::string& what, const std::string& name);

}  // namespace dsgd

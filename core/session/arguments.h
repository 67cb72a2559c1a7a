// Checks of what users give, where several calls take the same kind of thing.
#pragma once

#include <string>

#include "transport/base/status.h"

namespace dsgd {

// A contribution weight: 0, or within bounds that leave c*g and the sums of it their place in float32.
Status check_weight(double weight);

// A name of a parameter or an object ("parameter", "object"): it stands in messages and logs of all workers.
Status check_name(const std::string& what, const std::string& name);

}  // namespace dsgd

// An eventfd behind the Notifier interface.
#pragma once

#include <memory>

#include "transport/network.h"

namespace dsgd::transport::uv {

Result<std::unique_ptr<Notifier>> make_notifier();

}  // namespace dsgd::transport::uv

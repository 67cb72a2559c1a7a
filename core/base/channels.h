// Ends a connection within one of its callbacks.
#pragma once

#include <memory>
#include <utility>

#include "transport/network.h"

namespace dsgd {

// Closes a channel, which may be calling the caller at this moment: it is destroyed in a task of its own.
inline void close_in_callback(transport::Loop& loop, std::shared_ptr<transport::ClientChannel> channel,
                              bool flush = true) {
  channel->close(flush);
  loop.post([channel = std::move(channel)] {});
}

}  // namespace dsgd

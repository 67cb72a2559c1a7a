// Settings of the connections between workers.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>

#include "core/metrics/trace.h"
#include "transport/loop.h"
#include "transport/messages.h"

namespace dsgd {

struct PeerOptions {
  transport::Hello hello;  // job, worker id; role, rank, view and job nonce are filled in
  std::string token;
  int32_t max_workers = std::numeric_limits<int32_t>::max();  // of any view
  uint64_t receive_memory = 256 << 20;
  bool views_change = false;  // later views may come; else messages of another one are a mismatch
  // Time after which a peer that does not answer counts as out of reach. Waits for peers are a part or a
  // multiple of it.
  transport::Duration lease = std::chrono::seconds(10);
  metrics::Trace* trace = nullptr;
};

}  // namespace dsgd

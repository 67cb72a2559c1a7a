// How a head runs its job.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/views_change.h"
#include "transport/loop.h"

namespace dsgd {

struct HeadOptions {
  uint32_t num_workers = 1;
  transport::Duration lease{};
  // A head that runs outside the workers ends when a worker disconnects or is silent for a lease before the
  // job begins, and no worker joins within this time. 0: never.
  transport::Duration init_timeout{};
  // The job goes on in a new view after a loss if at least this number of workers is left. 0: num_workers, so
  // that a loss ends the job.
  uint32_t min_workers = 0;
  // Workers may join the running job while it has fewer. 0: num_workers.
  uint32_t max_workers = 0;
  // If fewer than min_workers are left, the job waits for this time for others to join. 0: it ends at once.
  transport::Duration rejoin_timeout{};
  // A worker that keeps all others waiting for this time is lost, if min_workers are left. 0: never.
  transport::Duration straggler_timeout{};
  // With a store: how long a head that receives no heartbeat waits for the workers to come back.
  transport::Duration head_timeout{};
  std::string job = {}, token = {};  // its name, for the record; its token, for the record's digest

  // With the limits of the number of workers in place of 0.
  HeadOptions with_limits() const {
    HeadOptions options = *this;
    options.min_workers = or_all(min_workers, num_workers);
    options.max_workers = or_all(max_workers, num_workers);
    return options;
  }
  bool views_change() const {
    return dsgd::views_change(num_workers, min_workers, max_workers, rejoin_timeout);
  }
};

}  // namespace dsgd

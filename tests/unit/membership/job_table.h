// A table of workers w0, w1, ..., as it is when the job has begun.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/membership/worker_table.h"

namespace dsgd {

struct JobTable {
  explicit JobTable(uint32_t num_workers, uint32_t min_workers = 0, uint32_t max_workers = 0)
      : options(
            HeadOptions{num_workers, std::chrono::seconds(10), {}, min_workers, max_workers}.with_limits()),
        workers(options) {
    while (workers.size() < num_workers) add();
  }
  WorkerTable::Worker& add() {
    transport::MemberInfo info;
    const size_t number = workers.size();
    info.worker_id = std::string("w") + std::to_string(number);
    info.host = std::string("node") + std::to_string(number);
    info.rank = static_cast<int32_t>(number);
    return workers.add(info, 100 + number);
  }
  void lose(size_t worker) { workers[worker].lost = true; }

  const HeadOptions options;
  WorkerTable workers;
};

}  // namespace dsgd

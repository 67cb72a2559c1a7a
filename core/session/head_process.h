#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "core/base/log.h"
#include "core/config/config.h"
#include "transport/network.h"

namespace dsgd {

// A head that runs outside the workers (dsgd_head_start).
class HeadProcess {
 public:
  static Result<std::unique_ptr<HeadProcess>> start(const Config& config,
                                                    std::unique_ptr<transport::Environment> environment,
                                                    std::shared_ptr<Log> log);
  ~HeadProcess();
  const std::string& address() const;
  Status alive() const;                            // see transport::Environment
  Status wait(std::chrono::milliseconds timeout);  // timeout < 0: no limit

 private:
  HeadProcess();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsgd

// The number of workers that was asked for. The head starts and stops no worker: `dsgd run` does, and reads
// the number in the StatusReply. Pure data; the head owns it.
#pragma once

#include <cstdint>

#include "core/membership/head_options.h"
#include "transport/messages.h"

namespace dsgd {

class Scaling {
 public:
  explicit Scaling(const HeadOptions& options) : options_(options) {}

  // `state`: of the job. Returns an error if it cannot have this number of workers now.
  Status request(uint32_t workers, transport::StatusReply::State state);
  void describe(transport::StatusReply* reply) const;

 private:
  const HeadOptions& options_;
  uint32_t wanted_ = 0;  // of the last request
  uint32_t requests_ = 0;
};

}  // namespace dsgd

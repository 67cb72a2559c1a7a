// Settings of a head, and of the networks of a worker, a head, or a query of the job's status, by the
// configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/log.h"
#include "core/config/config.h"
#include "core/membership/head_options.h"
#include "transport/network.h"

namespace dsgd {

// Returns the settings of a head that runs outside the workers.
HeadOptions head_options(const Config& config);

// Returns the number of descriptors that the connections of such a job need in one process.
int64_t descriptors_of_job(int64_t num_workers, bool as_head, bool as_worker);

// A process of the job may need one connection to and one from each worker, and `others`. Returns an error if
// its limit of open files is too low: to run out later would stop the job in mid-step.
Status check_descriptors(transport::Environment& environment, int64_t num_workers, bool as_head,
                         bool as_worker, int64_t others = 0);

// Returns whether a token or TLS is set.
bool is_protected(const Config& config);

// Without a token or TLS a head listens on the loopback interface only.
Status check_token(const Config& config, const std::string& head);

// Returns the files of the keys `tls_cert`, `tls_key` and `tls_ca`; none: no TLS.
std::optional<transport::TlsFiles> tls_files(const Config& config);

// Makes networks that are created afterwards use the keys `tls_cert`, `tls_key` and `tls_ca`.
Status use_tls(transport::Environment& environment, const Config& config, std::shared_ptr<Log> log);

// Returns the value of the key `checksum`.
transport::Checksum checksum_of(const Config& config);

}  // namespace dsgd

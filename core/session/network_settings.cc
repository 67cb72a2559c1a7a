#include "core/session/network_settings.h"

#include <algorithm>

#include "core/base/address.h"

namespace dsgd {

HeadOptions head_options(const Config& config) {
  const auto number = [&](const char* key) { return static_cast<uint32_t>(config.integer(key)); };
  return {.num_workers = number("num_workers"),
          .lease = config.duration("lease"),
          .init_timeout = config.duration("init_timeout"),
          .min_workers = number("min_workers"),
          .max_workers = number("max_workers"),
          .rejoin_timeout = config.duration("rejoin_timeout"),
          .straggler_timeout = config.duration("straggler_timeout"),
          .head_timeout = config.duration("head_timeout"),
          .job = config.text("job"),
          .token = config.text("token")};
}

int64_t descriptors_of_job(int64_t num_workers, bool as_head, bool as_worker) {
  int64_t wanted = 0;
  if (as_head) wanted += 2 * num_workers;              // each member's own connection, and its heartbeat's
  if (as_worker) wanted += 2 * (num_workers - 1) + 2;  // peers; its own two to the head
  return wanted;
}

Status check_descriptors(transport::Environment& environment, int64_t num_workers, bool as_head,
                         bool as_worker, int64_t others) {
  const int64_t wanted = descriptors_of_job(num_workers, as_head, as_worker) + others;
  const int64_t free = environment.free_descriptors();
  if (free >= wanted) return {};
  return Status(Code::kLimit,
                "a job of " + std::to_string(num_workers) + " workers needs up to " + std::to_string(wanted) +
                    " descriptors in this process, but only " + std::to_string(std::max<int64_t>(free, 0)) +
                    " more descriptors are available; raise the limit of open files (ulimit -n) by " +
                    std::to_string(wanted - free) + " or more")
      .with_parameter("num_workers");
}

bool is_protected(const Config& config) {
  return !config.text("token").empty() || !config.text("tls_cert").empty();
}

Status check_token(const Config& config, const std::string& head) {
  if (is_protected(config) || is_loopback(head)) return {};
  return Status(Code::kInvalidArgument,
                "`token` is not set: without one, or TLS, the head listens on the loopback interface only, "
                "not on " +
                    host_of(head) +
                    "; set `token` to the same secret on the head and all workers, or `tls_cert`, `tls_key` "
                    "and `tls_ca`")
      .with_parameter("token");
}

std::optional<transport::TlsFiles> tls_files(const Config& config) {
  if (config.text("tls_cert").empty()) return std::nullopt;
  return transport::TlsFiles{config.text("tls_cert"), config.text("tls_key"), config.text("tls_ca")};
}

Status use_tls(transport::Environment& environment, const Config& config, std::shared_ptr<Log> log) {
  const auto files = tls_files(config);
  if (!files) return {};
  return environment.use_tls(*files, [log](const std::string& warning) { log->warning(warning); });
}

transport::Checksum checksum_of(const Config& config) {
  const std::string when = config.text("checksum");
  return when == "always"  ? transport::Checksum::kAlways
         : when == "never" ? transport::Checksum::kNever
                           : transport::Checksum::kAuto;
}

}  // namespace dsgd

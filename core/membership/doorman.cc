#include "core/membership/doorman.h"

#include <cstdint>

namespace dsgd {
namespace {

// Takes the same time whatever the token's bytes are; only lengths show.
bool equal_secrets(const std::string& given, const std::string& secret) {
  volatile uint8_t difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = secret.empty() ? '\0' : secret[i % secret.size()];
    difference =
        static_cast<uint8_t>(difference | (static_cast<uint8_t>(given[i]) ^ static_cast<uint8_t>(other)));
  }
  return difference == 0;
}

std::string major_version(const std::string& version) { return version.substr(0, version.find('.')); }

}  // namespace

const char* library_version() { return DSGD_LIBRARY_VERSION; }

Doorman::Doorman(std::string job, std::string token, Route head, Route peer)
    : job_(std::move(job)), token_(std::move(token)), head_(head), peer_(peer) {}

Result<Doorman::Decision> Doorman::on_hello(const transport::Hello& hello, const std::string& from) {
  const bool token_right = equal_secrets(hello.token, token_);
  if (!token_right) {  // nothing about this job is told to who does not know the token
    return Status(Code::kUnauthorized, "worker '" + hello.worker_id + "' at " + from +
                                           " is not let in: its token is wrong for job '" + hello.job +
                                           "'; give every process of the job the same `token` and `job`");
  }
  if (hello.job != job_) {
    return Status(Code::kUnauthorized,
                  "worker '" + hello.worker_id + "' at " + from + " is not let in: it wants job '" +
                      hello.job + "', this is job '" + job_ +
                      "'; set `job` to the same name everywhere, or `head` to another address");
  }
  if (hello.protocol != transport::kProtocolVersion) {
    return Status(Code::kMismatch, "worker '" + hello.worker_id + "' speaks protocol " +
                                       std::to_string(hello.protocol) + " (dsgd " + hello.library_version +
                                       "), this process speaks protocol " +
                                       std::to_string(transport::kProtocolVersion) + " (dsgd " +
                                       library_version() + "); install the same version of dsgd everywhere");
  }
  if (major_version(hello.library_version) != major_version(library_version())) {
    return Status(Code::kMismatch,
                  "worker '" + hello.worker_id + "' has dsgd " + hello.library_version +
                      ", this process has dsgd " + library_version() +
                      "; major versions must be the same: install one version of dsgd everywhere");
  }
  const bool to_peer = hello.role == transport::Role::kPeer;
  const Route& route = to_peer ? peer_ : head_;
  if (route.network == nullptr || route.handler == nullptr) {
    return Status(Code::kState, to_peer
                                    ? "this process is a head and computes nothing; it has no worker to reach"
                                    : "this process is a worker of job '" + job_ +
                                          "', not its head; set `head` to the head's address");
  }
  return Decision{route.network, route.handler};
}

}  // namespace dsgd

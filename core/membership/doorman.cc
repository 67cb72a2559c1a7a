#include "core/membership/doorman.h"

#include <cstdint>

#include "core/base/text.h"

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

Doorman::Doorman(std::string job, std::string token, Route head, Route peer, std::shared_ptr<Log> log)
    : job_(std::move(job)),
      token_(std::move(token)),
      head_(head),
      peer_(peer),
      log_(log ? std::move(log) : std::make_shared<Log>()) {}

Result<Doorman::Decision> Doorman::on_hello(const transport::Hello& hello, const std::string& from) {
  auto decision = decide(hello, from);
  if (!decision.ok()) {
    log_->warning(decision.status().message());
    if (refused_) refused_(decision.status().message());
  }
  return decision;
}

Result<Doorman::Decision> Doorman::decide(const transport::Hello& hello, const std::string& from) const {
  const std::string who = std::string("worker '") + printable(hello.worker_id) + "' at " + from;
  if (!equal_secrets(hello.token, token_)) {  // nothing about this job is told to who does not know the token
    return Status(Code::kUnauthorized, who + " is not let in: its token is wrong for job '" + printable(hello.job) +
                                           "'; give every process of the job the same `token` and `job`");
  }
  if (hello.job != job_) {
    return Status(Code::kUnauthorized, who + " is not let in: it wants job '" + printable(hello.job) +
                                           "', this is job '" + job_ +
                                           "'; set `job` to the same name everywhere, or `head` to another address");
  }
  const std::string version = printable(hello.library_version);
  if (hello.protocol != transport::kProtocolVersion) {
    return Status(Code::kMismatch, who + " is not let in: it speaks protocol " + std::to_string(hello.protocol) +
                                       " (dsgd " + version + "), this process speaks protocol " +
                                       std::to_string(transport::kProtocolVersion) + " (dsgd " + library_version() +
                                       "); install the same version of dsgd everywhere");
  }
  if (major_version(hello.library_version) != major_version(library_version())) {
    return Status(Code::kMismatch, who + " is not let in: it has dsgd " + version + ", this process has dsgd " +
                                       library_version() +
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

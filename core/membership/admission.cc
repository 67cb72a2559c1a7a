#include "core/membership/admission.h"

#include "core/base/text.h"

namespace dsgd {
namespace {

std::string name_of(const transport::Hello& hello, const std::string& from) {
  return std::string("worker '") + printable(hello.worker_id) + "' at " + from;
}

std::string major_version(const std::string& version) { return version.substr(0, version.find('.')); }

}  // namespace

const char* library_version() { return DSGD_LIBRARY_VERSION; }

Admission::Admission(transport::Loop& loop, std::string job, std::string token, Route head, Route peer,
                     std::shared_ptr<Log> log)
    : job_(std::move(job)),
      token_(std::move(token)),
      head_(head),
      peer_(peer),
      refusals_(loop, log ? std::move(log) : std::make_shared<Log>()) {}

Result<Admission::Decision> Admission::on_hello(const transport::Hello& hello, const std::string& from) {
  std::string cause;
  auto decision = decide(hello, from, &cause);
  if (!decision.ok() && !cause.empty()) refused(cause, decision.status());
  return decision;
}

// The message goes to a process that may not know the token, so it names only what that process has sent.
Status Admission::on_wrong_token(const transport::Hello& hello, const std::string& from) {
  Status why(Code::kUnauthorized, name_of(hello, from) + " was refused: its token is wrong for job '" +
                                      printable(hello.job) +
                                      "'; give every process of the job the same `token` and `job`");
  refused("their token is wrong", why);
  return why;
}

void Admission::on_tls_failure(const std::string& from, const Status& why) {
  refused("their TLS failed",
          Status(why.code(), "the connection from " + from + " was refused: " + why.message()));
}

void Admission::refused(const std::string& cause, const Status& why) {
  refusals_.note(cause, why.message());
  if (refused_) refused_(why.message());
}

Result<Admission::Decision> Admission::decide(const transport::Hello& hello, const std::string& from,
                                              std::string* cause) const {
  const std::string who = name_of(hello, from);
  *cause = "they want another job";
  if (hello.job != job_) {
    return Status(Code::kUnauthorized,
                  who + " was refused: it wants job '" + printable(hello.job) + "', this is job '" + job_ +
                      "'; set `job` to the same name everywhere, or `head` to another address");
  }
  const std::string version = printable(hello.library_version);
  *cause = "they have another version of dsgd";
  if (hello.protocol != transport::kProtocolVersion) {
    return Status(Code::kMismatch, who + " was refused: it speaks protocol " +
                                       std::to_string(hello.protocol) + " (dsgd " + version +
                                       "), this process speaks protocol " +
                                       std::to_string(transport::kProtocolVersion) + " (dsgd " +
                                       library_version() + "); install the same version of dsgd everywhere");
  }
  if (major_version(hello.library_version) != major_version(library_version())) {
    return Status(Code::kMismatch,
                  who + " was refused: it has dsgd " + version + ", this process has dsgd " +
                      library_version() +
                      "; major versions must be the same: install one version of dsgd everywhere");
  }
  *cause = "they look for a head or a worker that is not in this process";
  const bool to_peer = hello.role == transport::Role::kPeer || hello.role == transport::Role::kProbe;
  const Route& route = hello.role == transport::Role::kProbe ? probe_ : to_peer ? peer_ : head_;
  if (route.network == nullptr || route.handler == nullptr) {
    return Status(
        Code::kState,
        to_peer ? "the process at this address is a head and computes nothing; it has no worker to reach"
                : "the process at this address is a worker of job '" + job_ +
                      "', not its head; set `head` to the head's address");
  }
  cause->clear();
  if (!to_peer && !standing_by_.ok()) return standing_by_;
  return Decision{route.network, route.handler};
}

}  // namespace dsgd

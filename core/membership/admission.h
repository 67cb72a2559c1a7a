// Admission: checks the hello of every connection to this process, before any RPC is possible on it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/base/log.h"
#include "core/base/refusal_log.h"
#include "core/membership/probe.h"
#include "transport/network.h"

namespace dsgd {

const char* library_version();  // "1.0.0"; what a Hello carries

class Admission final : public transport::AcceptHandler {
 public:
  struct Route {
    transport::Network* network = nullptr;  // null: this process has no such role
    transport::ServerHandler* handler = nullptr;
  };
  // Routes probes (probe.h) to this network. Without it, they are refused.
  void accept_probes(transport::Network* network) { probe_ = {network, &probe_handler_}; }
  // Routes by role. The transport has checked the token; the admission checks the job, the protocol and the
  // library's major version. Refusals are logged, at a limited rate (`log` null: not at all). `loop`: of the
  // listening network.
  Admission(transport::Loop& loop, std::string job, std::string token, Route head, Route peer,
            std::shared_ptr<Log> log);
  // Called for each refusal, on the listening network's loop.
  void on_refused(std::function<void(const std::string& why)> refused) { refused_ = std::move(refused); }

  // Refuses workers that look for the head because of `why`, or no longer (OK). Such refusals are not
  // logged. On the listening network's loop.
  void stand_by(Status why) { standing_by_ = std::move(why); }

  const std::string& token() const override { return token_; }
  Result<Decision> on_hello(const transport::Hello& hello, const std::string& from) override;
  Status on_wrong_token(const transport::Hello& hello, const std::string& from) override;
  void on_tls_failure(const std::string& from, const Status& why) override;

 private:
  Result<Decision> decide(const transport::Hello& hello, const std::string& from, std::string* cause) const;
  void refused(const std::string& cause, const Status& why);

  const std::string job_, token_;
  ProbeHandler probe_handler_;
  Route head_, peer_, probe_;
  Status standing_by_;
  RefusalLog refusals_;
  std::function<void(const std::string&)> refused_;
};

}  // namespace dsgd

// The doorman: the first look at every connection of a process, before any RPC is possible on it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/base/log.h"
#include "transport/network.h"

namespace dsgd {

const char* library_version();  // "1.0.0"; what a Hello carries

class Doorman final : public transport::AcceptHandler {
 public:
  struct Route {
    transport::Network* network = nullptr;  // null: this process has no such role
    transport::ServerHandler* handler = nullptr;
  };
  // Routes by role. Job and token are compared (token in constant time) before anything else is looked at;
  // then the protocol and the library's major version. Whom it turns away it tells the log (null: nobody).
  Doorman(std::string job, std::string token, Route head, Route peer, std::shared_ptr<Log> log);
  // And whoever else wants to know; called on the listening network's loop.
  void on_refused(std::function<void(const std::string& why)> refused) { refused_ = std::move(refused); }
  Result<Decision> on_hello(const transport::Hello& hello, const std::string& from) override;

 private:
  Result<Decision> decide(const transport::Hello& hello, const std::string& from) const;

  std::string job_, token_;
  Route head_, peer_;
  std::shared_ptr<Log> log_;
  std::function<void(const std::string&)> refused_;
};

}  // namespace dsgd

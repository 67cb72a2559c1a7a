// The doorman: the first look at every connection of a process, before any RPC is possible on it.
#pragma once

#include <string>

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
  // then the protocol and the library's major version.
  Doorman(std::string job, std::string token, Route head, Route peer);
  Result<Decision> on_hello(const transport::Hello& hello, const std::string& from) override;

 private:
  std::string job_, token_;
  Route head_, peer_;
};

}  // namespace dsgd

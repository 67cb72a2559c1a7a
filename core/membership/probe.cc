#include "core/membership/probe.h"

#include <memory>
#include <utility>

#include "core/base/channels.h"
#include "core/base/repeated_dial.h"
#include "core/base/retry.h"

namespace dsgd {

namespace {
Status reached() {
  return Status(Code::kState, "the worker can be reached; a probe's connection serves nothing else");
}
}  // namespace

// The refusal is the answer, and closes the connection: it needs no descriptor and no memory afterwards.
Status ProbeHandler::on_open(transport::ServerChannel&) { return reached(); }

void ProbeHandler::on_call(transport::ServerChannel&, transport::Message, transport::Responder respond) {
  respond(reached());
}

void ProbeHandler::on_bulk_end(transport::ServerChannel&, const transport::BulkHeader&,
                               std::unique_ptr<transport::BulkReceipt> receipt) {
  receipt->finish(reached());
}

void probe(transport::Network& network, transport::Hello hello, std::string token,
           std::vector<std::string> addresses, transport::Time deadline,
           std::function<void(const Status&)> done) {
  transport::DialOptions dial;
  dial.hello = std::move(hello);
  dial.hello.role = transport::Role::kProbe;
  dial.token = std::move(token);
  dial.deadline = deadline;
  RepeatedDial::start(network, std::move(addresses), std::move(dial),
                      [&network, done = std::move(done)](auto result) {
                        const bool reachable = result.ok() || is_final(result.status());
                        const Status status = reachable ? Status() : result.status();
                        if (result.ok()) close_in_callback(network.loop(), std::move(result).value());
                        done(status);
                      });
}

}  // namespace dsgd

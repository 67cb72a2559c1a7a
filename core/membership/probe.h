// Whether a worker can be reached: a new connection to the address at which it takes its peers. The heartbeat's thread
// dials and answers, so that neither bulk data nor a busy session delays it, and no retransmission of an old connection.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "transport/network.h"

namespace dsgd {

// Answers a probe with a refusal: the dialling side needs no more than that its hello is answered. It has no state: any thread.
class ProbeHandler final : public transport::ServerHandler {
 public:
  Status on_open(transport::ServerChannel&) override;
  void on_call(transport::ServerChannel&, transport::Message, transport::Responder respond) override;
  void on_bulk_end(transport::ServerChannel&, const transport::BulkHeader&,
                   std::unique_ptr<transport::BulkReceipt> receipt) override;
  void on_close(transport::ServerChannel&, const Status&) override {}
};

// Dials the addresses in turn, on the network's loop, again and again until one answers. `done` is called once, on that loop: OK when one
// has answered, be it with a refusal; else why the last one has not. `hello` is a peer's; its role is set here.
void probe(transport::Network& network, transport::Hello hello, std::string token, std::vector<std::string> addresses, transport::Time deadline,
           std::function<void(const Status&)> done);

}  // namespace dsgd

// Finds out whether a worker can be reached, by a new connection to the address at which it accepts its
// peers. The heartbeat's thread dials and answers, so neither bulk data, a busy session, nor TCP
// retransmission on an old connection delays it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "transport/network.h"

namespace dsgd {

// Refuses each probe: the dialling side needs only an answer to its hello. It has no state: any thread.
class ProbeHandler final : public transport::ServerHandler {
 public:
  Status on_open(transport::ServerChannel&) override;
  void on_call(transport::ServerChannel&, transport::Message, transport::Responder respond) override;
  void on_bulk_end(transport::ServerChannel&, const transport::BulkHeader&,
                   std::unique_ptr<transport::BulkReceipt> receipt) override;
  void on_close(transport::ServerChannel&, const Status&) override {}
};

// Dials the addresses, on the network's loop, until one answers (RepeatedDial). `done` is called once, on
// that loop: OK when one has answered, even with a refusal; else the error of the last attempt. `hello` is a
// peer's; its role is set here.
void probe(transport::Network& network, transport::Hello hello, std::string token,
           std::vector<std::string> addresses, transport::Time deadline,
           std::function<void(const Status&)> done);

}  // namespace dsgd

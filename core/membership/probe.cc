#include "core/membership/probe.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/membership/retry.h"

namespace dsgd {
namespace {

using transport::ClientChannel;

// Attempts overlap, since one whose first packet is lost in a cut is sent again by TCP only after a second
// and more.
constexpr int kAttempts = 20, kLiveAttempts = 4;

struct Probe : std::enable_shared_from_this<Probe> {
  transport::Network* network;
  transport::Hello hello;
  std::string token;
  std::vector<std::string> addresses;
  transport::Time deadline;
  transport::Duration period;
  std::function<void(const Status&)> done;
  Status last{Code::kUnreachable, "it has given no address"};

  void attempt() {
    if (!done) return;
    const transport::Time now = network->loop().now();
    if (now >= deadline) return std::exchange(done, nullptr)(last);
    try_address(0, std::min(deadline, now + kLiveAttempts * period));
    network->loop().schedule(std::min(deadline, now + period),
                             [self = shared_from_this()] { self->attempt(); });
  }

  void try_address(size_t index, transport::Time until) {
    if (index == addresses.size() || !done) return;
    transport::DialOptions dial;
    dial.hello = hello;
    dial.token = token;
    dial.deadline = until;
    network->dial(addresses[index], std::move(dial), [self = shared_from_this(), index, until](auto result) {
      if (!result.ok() && !is_final(result.status())) {
        self->last = result.status();
        return self->try_address(index + 1, until);
      }
      if (result.ok()) {
        const std::shared_ptr<ClientChannel> channel = std::move(result).value();
        channel->close(true);
        self->network->loop().post([channel] {});  // the channel is calling
      }
      if (auto tell = std::exchange(self->done, nullptr)) tell({});
    });
  }
};

}  // namespace

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
  auto probe = std::make_shared<Probe>();
  probe->network = &network;
  probe->hello = std::move(hello);
  probe->hello.role = transport::Role::kProbe;
  probe->token = std::move(token);
  probe->addresses = std::move(addresses);
  probe->deadline = deadline;
  probe->period = std::max<transport::Duration>((deadline - network.loop().now()) / kAttempts,
                                                std::chrono::milliseconds(1));
  probe->done = std::move(done);
  probe->attempt();
}

}  // namespace dsgd

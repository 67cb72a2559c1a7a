// Dials a worker again and again, until it answers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/network.h"

namespace dsgd {

// Attempts overlap, since one whose first packet is lost in a cut is sent again by TCP only after a second
// and more. Each dials the addresses in turn.
class RepeatedDial : public std::enable_shared_from_this<RepeatedDial> {
 public:
  // Attempts of one dial. A worker that is dialled may see as many connections, but only one of them carries
  // messages.
  static constexpr int kAttempts = 20;

  using Done = std::function<void(Result<std::unique_ptr<transport::ClientChannel>>)>;
  enum class Refusal {
    kEnds,      // one that is final (retry.h) ends the dial
    kRepeated,  // another process may come to the address
  };
  // On the network's loop. `done` is called once, from a task of it: with the first connection, with a
  // refusal that ends the dial, or at the deadline with the error of the last attempt. Further connections
  // are closed. The time for which this process is stopped does not count: the deadline is then later by it.
  static std::shared_ptr<RepeatedDial> start(transport::Network& network, std::vector<std::string> addresses,
                                             transport::DialOptions options, Done done,
                                             Refusal refusal = Refusal::kEnds);
  // Ends the attempts; `done` is not called.
  void cancel() { done_ = nullptr; }

 private:
  RepeatedDial(transport::Network& network, std::vector<std::string> addresses,
               transport::DialOptions options, Done done, Refusal refusal);
  void attempt();
  void try_address(size_t index, transport::Time until);
  void end(Result<std::unique_ptr<transport::ClientChannel>> result);

  transport::Network& network_;
  const std::vector<std::string> addresses_;
  const transport::DialOptions options_;
  transport::Time deadline_;
  const transport::Duration period_;
  transport::Time due_{};  // of the next attempt
  Done done_;              // null: it has ended
  const Refusal refusal_;
  bool first_ = true;
  Status last_;  // error
};

}  // namespace dsgd

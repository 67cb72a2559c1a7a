// Dials the head of a joined worker again, until a head that knows the worker answers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/repeated_dial.h"
#include "core/membership/attempts.h"
#include "transport/network.h"

namespace dsgd {

class HeadReconnector : public Attempts<HeadReconnector> {
 public:
  struct Options {
    std::vector<std::string> addresses;  // of the heads, of which one serves
    transport::Hello hello;
    std::string token;
    transport::Return request;
    transport::Duration lease{};
    transport::Time deadline{};
  };
  using Channel = std::shared_ptr<transport::ClientChannel>;
  // `done` is called once, on the loop, unless stop() comes first: with the new control connection, with the
  // refusal of a head that knows the job's nonce, or at the deadline with the errors of all addresses
  // (is_lost_connection). A process that refuses the connection is not of this job, or has a wrong setting:
  // another head may serve, or come to that address.
  HeadReconnector(transport::Network& network, Options options, std::function<void(Result<Channel>)> done);
  void start();
  void stop();

 private:
  void dial();
  void on_dialled(size_t head, Result<std::unique_ptr<transport::ClientChannel>> result);
  void cancel_dials();
  void ask(size_t head);
  void note_error(size_t head, const Status& why);
  void try_again();
  void end(Result<Channel> result);
  void drop_channel();

  transport::Network& network_;
  const Options options_;
  std::function<void(Result<Channel>)> done_;         // null: over
  transport::Duration delay_;                         // before the next attempt
  std::vector<std::shared_ptr<RepeatedDial>> dials_;  // one for each address
  size_t failed_ = 0;                                 // of these
  std::vector<Status> errors_;  // of each address: the last refusal, else the last error
  Channel channel_;
  transport::TimerId timer_ = 0;
};

}  // namespace dsgd

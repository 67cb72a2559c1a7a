// The head: decides which workers are in the job.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/base/log.h"
#include "transport/network.h"

namespace dsgd {

struct HeadOptions {
  uint32_t num_workers = 1;
  transport::Duration lease{};
  // A head that runs outside the workers ends when a worker disconnects or is silent for a lease before the
  // job begins, and no worker joins within this time. 0: never.
  transport::Duration init_timeout{};
};

// Complete when num_workers have joined. Ranks: a worker that asks for a rank gets it; the others get the
// free ranks in the order of their worker ids, so that the same ids give the same ranks in every run. A
// worker that waits loses its place when its connection ends, or when it has sent nothing for a lease. After
// completion, a worker that does not renew its lease, whose heartbeat or control connection ends without
// Leave, or that reports a broken job ends the job: all Watch calls are answered with the cause. A report of
// an unreachable peer makes the head decide which of the two is cut off. A head that itself was late (its
// timer fired more than lease/2 after it was due) first gives every worker one more lease, since renewals may
// be unread.
//
// The head may be destroyed before or after the network that carries it; it touches neither loop nor channels
// then.
class Head final : public transport::ServerHandler {
 public:
  Head(transport::Loop& loop, HeadOptions options, std::shared_ptr<Log> log);
  ~Head() override;
  Status on_open(transport::ServerChannel&) override;
  void on_call(transport::ServerChannel&, transport::Message request, transport::Responder respond) override;
  void on_bulk_end(transport::ServerChannel&, const transport::BulkHeader&,
                   std::unique_ptr<transport::BulkReceipt>) override;
  void on_close(transport::ServerChannel&, const Status& why) override;

  // `ended` is called once, on the loop, when the job is over: OK when all workers have left in good order,
  // else the cause. By then every worker has disconnected, or had a lease's time for it: the process may end.
  void on_end(std::function<void(const Status&)> ended);
  // "2 of 4 workers have come: 'w0' (host nodea, pid 17), ..." for time-out messages. Loop only.
  std::string progress() const;
  // Counts a refused connection, for the progress message of waiting workers. Loop only.
  void note_refused(const std::string& why);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace dsgd

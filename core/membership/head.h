// The head: decides which workers are in the job.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/base/log.h"
#include "core/membership/head_options.h"
#include "core/membership/view_store.h"
#include "transport/network.h"

namespace dsgd {

// The job begins when num_workers have joined. A worker that asks for a rank gets it; the others get the free
// ranks in the order of their worker ids, so that the same ids give the same ranks in every run. Before the
// job begins, a worker loses its place when its connection ends, or when it has sent nothing for a lease.
//
// In the running job a worker is lost if it does not renew its lease, if its heartbeat or control connection
// ends without Leave, or if it reports a broken session. If min_workers are left, the head answers all Watch
// calls with a new view of these; else the job ends, and it answers with the cause. When a worker reports
// that it cannot reach a peer, the head decides which of the two is cut off. A head that was itself late (its
// timer fired more than lease/2 after it was due) first gives every worker one more lease, since renewals may
// be unread.
//
// With a store, a decision is durable before any worker is told of it. Another head can then take up the job:
// each worker has a lease to come back.
//
// The head may be destroyed before or after the network that carries it; it touches neither loop nor channels
// then.
class Head final : public transport::ServerHandler {
 public:
  // `store`: null if the job ends with this head; it outlives the head.
  Head(transport::Loop& loop, HeadOptions options, std::shared_ptr<Log> log, ViewStore* store = nullptr);
  ~Head() override;
  Status on_open(transport::ServerChannel&) override;
  void on_call(transport::ServerChannel&, transport::Message request, transport::Responder respond) override;
  void on_bulk_end(transport::ServerChannel&, const transport::BulkHeader&,
                   std::unique_ptr<transport::BulkReceipt>) override;
  void on_close(transport::ServerChannel&, const Status& why) override;

  // `ended` is called once, on the loop, when the job is over: OK when all workers have left in good order,
  // else the cause. By then every worker has disconnected, or had a lease's time for it: the process may end.
  void on_end(std::function<void(const Status&)> ended);
  // "2 of 4 workers have joined: 'w0' (host nodea, pid 17), ...". Loop only.
  std::string progress() const;
  // Takes up the job of an earlier head. Loop only, before the first worker connects.
  void take_up(const transport::HeadRecord& earlier);
  // Another head may serve the job: closes all connections, sends the workers nothing more, and ends with
  // `why`, or with the result of the job if that is over. Loop only.
  void stand_down(const Status& why);
  // The address at which the head listens, for the record. Loop only.
  void set_address(const std::string& address);
  // Counts a refused connection, for the progress message of waiting workers. Loop only.
  void note_refused(const std::string& why);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace dsgd

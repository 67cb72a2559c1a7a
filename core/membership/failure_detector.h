// Which workers of the running job are lost, as the head sees it: leases that are over, connections that
// end, pairs that cannot reach each other, stragglers. It also notices that the head itself is cut off or was
// stopped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/membership/cut_pairs.h"
#include "core/membership/durability.h"
#include "core/membership/head_options.h"
#include "core/membership/leases.h"
#include "core/membership/progress.h"
#include "core/membership/worker_table.h"
#include "transport/loop.h"
#include "transport/messages.h"

namespace dsgd {

class FailureDetector : public std::enable_shared_from_this<FailureDetector> {
 public:
  struct Events {
    // These workers are lost, because of `why`.
    std::function<void(const std::vector<size_t>& workers, const Status& why)> lost;
    std::function<void(const Status& why)> head_lost;  // the head itself: the job cannot go on
  };
  FailureDetector(transport::Loop& loop, const HeadOptions& options, std::shared_ptr<Log> log,
                  const WorkerTable& workers, const Durability& durability, Events events);

  // The job begins, with the workers that are in the table.
  void begin();
  // The job of an earlier head goes on. Each worker has a lease to come back.
  void take_up();
  // Sets the timer of the next check of the leases. Called after begin() and take_up(), and when a worker has
  // joined the running job.
  void schedule_check();
  // The job is over: no worker is lost any more.
  void stop() { running_ = false; }
  void set_address(const std::string& address) { address_ = address; }

  // ---- workers and their leases
  void add_worker(size_t worker);  // joins the running job
  void begin_lease(size_t worker) { leases_.begin(worker, loop_.now()); }
  void end_lease(size_t worker) { leases_.end(worker); }  // it has left or is lost
  void on_renew(size_t worker);
  void on_back(const WorkerTable::Worker& worker);  // has a new control connection
  // No worker has come back since this head has taken up the job.
  bool no_worker_back() const { return no_worker_back_; }

  // ---- what workers report
  void on_progress(size_t worker, transport::Progress report);
  void on_cut(const WorkerTable::Worker& worker, int32_t peer_number, const Status& why);
  // A worker of the job cannot reach this one, which is in the job, too, and the head has not decided yet.
  bool is_cut(int32_t number) const { return cut_pairs_.has(number); }
  // The control connection or the last heartbeat connection, named by `which`, has ended with `why`.
  void on_connection_lost(const WorkerTable::Worker& worker, const std::string& which, const Status& why);
  // Returns the cause that the other workers get after `sender` has failed because of `why`. If `why` is the
  // loss of the head, the cause differs, since the report has arrived: either the head was stopped, or only
  // the direction from the head to that worker is broken.
  Status cause_from(const WorkerTable::Worker& sender, const Status& why, const std::string& prefix) const;
  void describe(const WorkerTable::Worker& worker, transport::WorkerStatus* status) const;

 private:
  bool decides() const { return running_ && durability_.holds(); }
  void check_leases();
  bool give_time(const std::string& silence);
  bool receives_nothing(transport::Time now) const;
  void decide_cut_after(transport::Duration wait);
  void decide_cut();
  void find_stragglers();
  Status straggler_error(const ProgressTable::Straggler& straggler, const std::string& others) const;
  transport::Duration own_stop() const;
  Status head_at_fault(const std::string& why) const;
  Status stopped_head(transport::Duration stop, const std::string& consequence) const;

  transport::Loop& loop_;
  const HeadOptions& options_;
  const std::shared_ptr<Log> log_;
  const WorkerTable& workers_;
  const Durability& durability_;
  const Events events_;
  Leases leases_;
  ProgressTable progress_;
  CutPairs cut_pairs_;
  bool running_ = false;
  transport::Time next_check_{};
  transport::TimerId check_timer_ = 0;
  // Length of the last stop of the head itself that check_leases noticed, and when it noticed it.
  transport::Duration last_stop_{};
  transport::Time resumed_{};
  // The head waits until then, though no heartbeat arrives. 0: it does not wait.
  transport::Time patience_end_{};
  bool no_worker_back_ = false;  // it has taken up a job, and no worker has come back
  transport::Time taken_up_{};   // when
  std::string address_;          // at which the head listens
};

}  // namespace dsgd

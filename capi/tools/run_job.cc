#include "capi/tools/run_job.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "capi/tools/output_queue.h"
#include "core/base/views_change.h"
#include "core/config/launcher.h"
#include "core/config/units.h"

namespace dsgd_tool {
namespace {

void apply_to_config(const std::vector<Setting>& settings, const OwnedConfig& config) {
  for (const auto& [key, value] : settings) {
    if (key != "algorithm" && key != "strategy") set_key(config, key, value);  // a head does not use these
  }
}

std::chrono::nanoseconds duration_of(const char* key, const OwnedConfig& config) {
  return std::chrono::nanoseconds(
      dsgd::config::parse_duration(dsgd_config_value(config.get(), key)).value_or(0));
}

// Each `dsgd run` that a launcher starts has a head, and thus a job, of its own.
void warn_if_started_several_times(const std::vector<Setting>& settings) {
  OwnedConfig config(dsgd_config_new());
  apply_to_config(settings, config);
  if (dsgd_config_value(config.get(), "launcher") == std::string("none")) return;
  const auto starter = dsgd::config::find_starter(own_environment());
  if (!starter) return;
  const std::string what = starter->launcher + (starter->understood ? " has" : " seems to have") +
                           " started several `dsgd run` processes (" + starter->evidence +
                           "), and each starts its own job";
  const std::string remedy = starter->understood ? "let it start COMMAND without `dsgd run`, or " : "";
  print_message("dsgd run: warning: %s; %sgive all of them one --head, or set launcher=none\n", what.c_str(),
                remedy.c_str());
}

// A head in this process.
class LocalHead {
 public:
  // `log_level`: of the least important records that are printed; -1: none is.
  explicit LocalHead(int32_t log_level) : log_level_(log_level) {}
  // Adds to `settings` how workers reach it.
  void start(std::vector<Setting>* settings);
  const char* address() const { return dsgd_head_address(head_.get()); }
  // Returns whether the job is over: no worker can join it any more. `failure`: why it has failed; "" if it
  // has not.
  bool job_is_over(std::string* failure) const;

 private:
  static void log(const dsgd_log_record* record, void* user) {
    const bool wanted = dsgd_log_record_level(record) <= static_cast<const LocalHead*>(user)->log_level_;
    if (wanted && !OutputQueue::of(STDERR_FILENO).full())  // dropped while the reader stalls
      print_message("%s", record_text("dsgd run", record).c_str());
  }

  const int32_t log_level_;
  OwnedHead head_;  // ends first: it calls log()
};

void LocalHead::start(std::vector<Setting>* settings) {
  OwnedConfig config(dsgd_config_new());
  dsgd_error* error = nullptr;
  if (!is_given("token", *settings)) settings->push_back({"token", random_token()});
  apply_to_config(*settings, config);
  set_key(config, "head", "127.0.0.1:0");
  set_key(config, "head_state", "");
  set_key(config, "log_level", "info");
  check(dsgd_config_log_hook(config.get(), log, this, &error), error);
  check(dsgd_head_start(config.get(), head_.out(), &error), error);
  settings->push_back({"head", address()});
}

bool LocalHead::job_is_over(std::string* failure) const {
  dsgd_error* error = nullptr;
  const int32_t status = dsgd_head_wait(head_.get(), 0, &error);
  if (status != DSGD_OK && status != DSGD_ERR_WAIT_TIMEOUT) *failure = dsgd_error_message(error);
  dsgd_error_free(error);
  return status != DSGD_ERR_WAIT_TIMEOUT;
}

// The job of one run_job(). Without --join, the workers that are started first have their ranks as numbers.
// Workers with greater numbers join the running job.
class Job {
 public:
  Job(const RunOptions& options, const std::vector<CommandGroup>& groups, std::vector<Setting> settings,
      Supervisor* supervisor, uint32_t* restarts);
  int run();

 private:
  void start_head();
  void announce();
  void start_worker(int number, const std::string& id);
  std::string replace(int number);
  void replace_missing();
  bool end_if_over();
  void follow_head();
  void follow_other_head();
  bool has_settled(const JobState& job);
  void scale(const JobState& job);
  void count_restarts();
  void warn_if_unjoined() const;

  const RunOptions& options_;
  std::vector<Setting> settings_;  // of all workers
  Supervisor* const supervisor_;
  uint32_t* const restarts_;
  const bool head_is_here_, token_is_given_;
  // Only the `dsgd run` of rank 0 writes the messages about joins, so that each appears once.
  const bool has_rank_0_;
  const uint32_t least_;  // see least_workers()
  const std::vector<std::string>& last_command_;
  std::map<int, const CommandGroup*> groups_;  // by the numbers of the workers to begin with
  int next_;                                   // number of the next worker that joins as the job runs
  std::set<std::string> started_;              // ids of workers
  uint32_t replaced_ = 0;                      // workers
  uint32_t scale_requests_ = 0;                // that have been followed
  uint32_t most_workers_ = kMaxWorkers;        // of its own, while `dsgd scale` wants fewer than there are
  std::vector<int> missing_;                   // workers whose replacements could not be started
  std::string stopped_;                        // id of the worker that was stopped last
  uint64_t view_ = 0, steps_in_view_ = 0;      // see has_settled()
  LocalHead head_;
  const OwnedConfig head_config_;  // to ask the head for its status
};

Job::Job(const RunOptions& options, const std::vector<CommandGroup>& groups, std::vector<Setting> settings,
         Supervisor* supervisor, uint32_t* restarts)
    : options_(options),
      settings_(std::move(settings)),
      supervisor_(supervisor),
      restarts_(restarts),
      head_is_here_(!head_is_elsewhere(options)),
      token_is_given_(is_given("token", settings_)),
      has_rank_0_(!options.supervised || options.first_rank == 0),
      least_(least_workers(settings_)),
      last_command_(groups.back().command),
      next_(static_cast<int>(options.first_rank)),
      head_(options.verbose ? DSGD_LOG_INFO : -1),
      head_config_(dsgd_config_new()) {
  for (const auto& group : groups) {
    for (uint32_t i = 0; i < group.workers; ++i) groups_[next_++] = &group;
  }
}

int Job::run() {
  if (head_is_here_) start_head();
  apply_to_config(settings_, head_config_);
  if (has_rank_0_) announce();
  if (head_is_here_) {
    supervisor_->tolerate_failures(
        least_, [this](int number) { return replace(number); }, [this] { return job_state(head_config_); });
  } else {
    supervisor_->leave_failures_to_head(least_);
    if (options_.join) supervisor_->join_running_job();
  }
  const std::string chosen = options_.join ? random_token().substr(0, 8) + "-" : "";
  for (const auto& [number, group] : groups_)
    start_worker(number, "worker-" + chosen + std::to_string(number));
  if (least_ > 0) follow_head();
  const int status = supervisor_->wait();
  count_restarts();
  if (status == 0 && has_rank_0_) warn_if_unjoined();
  return status;
}

void Job::start_head() {
  warn_if_started_several_times(settings_);
  warn_of_head_state();
  head_.start(&settings_);
}

void Job::announce() {
  const std::string address = head_is_here_           ? head_.address()
                              : options_.head.empty() ? std::getenv("DSGD_HEAD")
                                                      : options_.head;
  supervisor_->announce_joins(std::make_shared<WaitNote>("the head at " + address, !head_is_here_),
                              std::make_shared<WaitNote>("the other workers"));
}

void Job::start_worker(int number, const std::string& id) {
  const std::string name = options_.join ? id : std::to_string(number);
  const auto group = groups_.find(number);
  const bool begins = group != groups_.end();  // otherwise it joins as the job runs
  const bool has_rank = begins && !options_.join;
  auto own = settings_;
  if (has_rank) own.push_back({"rank", name});  // without one, the head gives a free one
  own.push_back({"worker_id", id});
  own.push_back({"supervisor", supervisor_->reports().address()});
  supervisor_->start({.kind = "worker",
                      .name = name,
                      .command = begins ? group->second->command : last_command_,
                      .settings = own,
                      .prefix = prefix_of(options_, name),
                      .first_rank = options_.join ? -1 : number,
                      .workers = 1,
                      .worker_id = id});
  started_.insert(id);
}

// Starts another worker instead of one that failed. Returns the end of the message about it: "" without
// --restarts, or if the job is over. If that worker cannot be started, this counts as a restart, too, and
// replace_missing() tries again.
std::string Job::replace(int number) {
  if (end_if_over() || options_.restarts == 0) return "";
  // While `dsgd scale` has too many workers stopped.
  if (supervisor_->running_workers() >= most_workers_) return "fewer workers are wanted";
  if (*restarts_ == 0) return "no restart is left";
  --*restarts_;
  // No id is used twice.
  const std::string id = "worker-" + std::to_string(number) + "-" + std::to_string(replaced_ + 1);
  try {
    start_worker(number, id);
  } catch (const Failure& failure) {
    const std::string why = std::string("cannot start it again: ") + failure.what();
    if (*restarts_ == 0) return why + "; no restart is left";
    missing_.push_back(number);
    return why + "; trying again in a second";
  }
  ++replaced_;
  return "it is started again (restart " + std::to_string(options_.restarts - *restarts_) + " of " +
         std::to_string(options_.restarts) + ")";
}

void Job::replace_missing() {
  for (const int number : std::exchange(missing_, {})) {
    const std::string done = replace(number);
    if (!done.empty()) print_message("dsgd run: worker %d is missing; %s\n", number, done.c_str());
  }
}

// Returns whether the job is over. If it has failed, ends the workers.
bool Job::end_if_over() {
  std::string failure;
  if (!head_.job_is_over(&failure)) return false;
  const auto job = job_state(head_config_);
  if (!job) return true;  // the head's answer is late; follow_head() asks again
  // Those that wait to join are refused, and the last workers may be lost after the others have left. Neither
  // is a failure if enough workers have left in good order.
  supervisor_->note_left(job->left);
  if (!failure.empty() && supervisor_->succeeded_workers() < least_) {
    supervisor_->fail("the job is over: " + failure);
  } else {
    supervisor_->note_lost(job->lost);
  }
  return true;
}

void Job::follow_head() {
  if (!head_is_here_) return follow_other_head();
  if (token_is_given_) {
    print_message("dsgd run: the head listens at %s (for dsgd status and dsgd scale)\n", head_.address());
  }
  supervisor_->repeat(std::chrono::seconds(1), [this] {
    if (end_if_over()) return;
    const auto job = job_state(head_config_);
    if (!job) return;
    supervisor_->note_left(job->left);
    if (job->failed) return;  // it is over soon
    supervisor_->note_lost(job->lost);
    scale(*job);
    replace_missing();
  });
}

// Ends the workers that the head has evicted, also if the job has failed: a stopped worker does not end by
// itself. The head may end a lease after the eviction. Its answer is awaited for a second at most.
void Job::follow_other_head() {
  const auto third =
      std::chrono::duration_cast<std::chrono::milliseconds>(duration_of("lease", head_config_) / 3);
  supervisor_->repeat(std::min<std::chrono::milliseconds>(third, std::chrono::seconds(2)), [this] {
    if (const auto job = job_state(head_config_)) supervisor_->note_lost(job->lost);
  });
}

// Returns whether the job can lose a worker. The worker that was stopped last is no longer in the view, and
// all workers have made a step in this view and since the last `dsgd scale`. So none of them is stopped, and
// the copies of the state that the last one held have been made again (`ps` with `copies`).
bool Job::has_settled(const JobState& job) {
  if (!job.steps || job.present.contains(stopped_)) return false;
  const auto [fewest, most] = *job.steps;
  if (std::exchange(view_, job.view) != job.view) steps_in_view_ = most;
  return fewest > steps_in_view_;
}

// After each new call of `dsgd scale`, starts the missing workers at once, or stops workers one after the
// other, so that no state is lost. Losses between two calls are left to --restarts. If a worker cannot be
// started, starts no more until the next call. Keeps one worker at least: the head ends with the last one.
void Job::scale(const JobState& job) {
  const uint32_t running = supervisor_->running_workers();
  if (job.scale_requests != std::exchange(scale_requests_, job.scale_requests)) {
    view_ = 0;  // earlier steps do not show that all workers make steps now
    const uint32_t others = count_others(job.present, started_);
    most_workers_ = job.wanted_workers > others ? job.wanted_workers - others : 1;
    if (running != most_workers_)
      print_message("dsgd run: scaling from %u to %u workers\n", running + others, most_workers_ + others);
    missing_.clear();  // they are not among `running`
    try {
      for (uint32_t count = running; count < most_workers_; ++count, ++next_)
        start_worker(next_, "worker-" + std::to_string(next_));
    } catch (const Failure& failure) {
      print_message("dsgd run: cannot start worker %d: %s; run `dsgd scale` again later\n", next_,
                    failure.what());
    }
  }
  if (running <= most_workers_) {
    most_workers_ = kMaxWorkers;
  } else if (has_settled(job)) {
    stopped_ = supervisor_->stop_worker();
  }
}

// Replacements that never joined the job do not count as restarts.
void Job::count_restarts() {
  const auto started = static_cast<uint32_t>(started_.size());
  const uint32_t unjoined = started - std::min(started, supervisor_->reports().joins());
  *restarts_ += std::min(replaced_, unjoined);
}

void Job::warn_if_unjoined() const {
  if (supervisor_->reports().joins() != 0) return;
  print_message(
      "dsgd run: warning: the commands have ended, but no worker has joined the job: a command "
      "joins it with dsgd_init (in Python dsgd.init) and the DSGD_* variables that it is given\n");
}

}  // namespace

uint32_t least_workers(const std::vector<Setting>& settings) {
  OwnedConfig config(dsgd_config_new());
  apply_to_config(settings, config);
  const auto number = [&](const char* key) {
    return static_cast<uint32_t>(std::atoi(dsgd_config_value(config.get(), key)));
  };
  const uint32_t all = number("num_workers"), least = number("min_workers");
  const std::chrono::nanoseconds wait = duration_of("rejoin_timeout", config);
  if (!dsgd::views_change(all, least, number("max_workers"), wait)) return 0;
  return wait.count() > 0 ? 1 : dsgd::or_all(least, all);
}

void check_settings_with_head(std::vector<Setting> settings) {
  LocalHead head(DSGD_LOG_WARNING);
  head.start(&settings);
}

int run_job(const RunOptions& options, const std::vector<CommandGroup>& groups, std::vector<Setting> settings,
            Supervisor* supervisor, uint32_t* restarts) {
  return Job(options, groups, std::move(settings), supervisor, restarts).run();
}

}  // namespace dsgd_tool

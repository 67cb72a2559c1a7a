// Real processes, killed and stopped: every other worker's call returns an error that names the victim,
// within the lease. The exact bound (lease + 100 ms) is shown in virtual time by the simulation; here the
// latencies are real ones, so they are recorded as properties of the test, and the limit is wide enough for a
// busy machine.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dsgd/dsgd.h>

#include "tests/loopback_socket.h"
#include "tests/unit/sanitizer.h"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A sanitizer makes the workers several times as slow.
constexpr milliseconds kLease{dsgd_test::kSanitized ? 3000 : 1000};
constexpr milliseconds kBusyMachine{dsgd_test::kSanitized ? 15000 : 3000};  // what scheduling may add

class Process {
 public:
  Process(std::vector<std::string> words, const std::vector<std::string>& environment) {
    int out[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    std::vector<char*> arguments, variables;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::vector<std::string> all = environment;
    for (std::string& variable : all) variables.push_back(variable.data());
    variables.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(out[1], 1);
      execve(arguments[0], arguments.data(), variables.data());
      _exit(127);
    }
    close(out[1]);
    out_ = out[0];
  }
  ~Process() {
    if (pid_ > 0 && !status_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_);
  }
  Process(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // The next line that begins with `word`; nothing when it does not come in time or the process ends first.
  std::optional<std::string> expect(const std::string& word, Clock::time_point deadline) {
    for (;;) {
      for (size_t end; (end = buffer_.find('\n')) != std::string::npos;) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        if (line.rfind(word, 0) == 0) return line;
      }
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count();
      pollfd poll_fd{out_, POLLIN, 0};
      if (left <= 0 || poll(&poll_fd, 1, static_cast<int>(left)) == 0) return std::nullopt;
      char chunk[4096];
      const ssize_t count = read(out_, chunk, sizeof chunk);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return std::nullopt;
      buffer_.append(chunk, static_cast<size_t>(count));
      said_.append(chunk, static_cast<size_t>(count));
    }
  }
  const std::string& said() const { return said_; }  // everything that was read
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    status_ = status;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string buffer_, said_;
  std::optional<int> status_;
};

struct Fault {
  const char* name;
  std::vector<std::string> work;
  int signal;
  int victim;
  bool head_in_worker;  // else the head is this process
  std::vector<std::string> settings = {};
};

class Job {
 public:
  Job(int workers, const std::vector<std::string>& work, bool head_in_worker,
      const std::vector<std::string>& settings = {}, milliseconds lease = kLease) {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    std::string address = "unix:" + folder_ + "/head";
    if (!head_in_worker) {
      dsgd_config* config = dsgd_config_new();
      EXPECT_EQ(dsgd_config_set(config, "head", "127.0.0.1:0", nullptr), DSGD_OK);
      EXPECT_EQ(dsgd_config_set(config, "num_workers", std::to_string(workers).c_str(), nullptr), DSGD_OK);
      EXPECT_EQ(dsgd_config_set(config, "lease", (std::to_string(lease.count()) + "ms").c_str(), nullptr),
                DSGD_OK);
      for (const std::string& setting : settings) {  // the head and the workers must agree on it
        const std::string least = "DSGD_MIN_WORKERS=";
        if (setting.rfind(least, 0) != 0) continue;
        EXPECT_EQ(dsgd_config_set(config, "min_workers", setting.substr(least.size()).c_str(), nullptr),
                  DSGD_OK);
      }
      EXPECT_EQ(dsgd_head_start(config, &head_, nullptr), DSGD_OK);
      dsgd_config_free(config);
      address = dsgd_head_address(head_);
    }
    std::vector<std::string> words = {PROCESS_WORKER};
    words.insert(words.end(), work.begin(), work.end());
    for (int rank = 0; rank < workers; ++rank) {
      std::vector<std::string> environment = {
          "DSGD_HEAD=" + address, "DSGD_NUM_WORKERS=" + std::to_string(workers),
          "DSGD_RANK=" + std::to_string(rank), "DSGD_LEASE=" + std::to_string(lease.count()) + "ms",
          // The worker that hosts the head is rank 0.
          std::string("DSGD_EMBED_HEAD=") + (head_in_worker && rank == 0 ? "auto" : "never")};
      for (const char* inherited : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
        if (const char* value = getenv(inherited))
          environment.push_back(std::string(inherited) + '=' + value);
      }
      environment.insert(environment.end(), settings.begin(), settings.end());
      processes.push_back(std::make_unique<Process>(words, environment));
    }
  }
  ~Job() {
    processes.clear();
    dsgd_head_free(head_);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  void expect_all(const std::string& word) {
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    for (size_t rank = 0; rank < processes.size(); ++rank) {
      ASSERT_TRUE(processes[rank]->expect(word, deadline))
          << "rank " << rank << " never said '" << word << "', only:\n"
          << processes[rank]->said();
    }
  }
  std::vector<std::unique_ptr<Process>> processes;

 private:
  // Holds the sockets: killed workers leave theirs.
  std::string folder_ = testing::TempDir() + "dsgd-fault-XXXXXX";
  dsgd_head* head_ = nullptr;
};

// Checks the end of each job in a thread of its own, while the test starts further jobs. If a worker is
// stopped, the others wait for a lease, and dsgd_close waits for another one. The destructor joins the
// threads.
class Finishing {
 public:
  template <typename Check>
  void add(const std::string& name, std::unique_ptr<Job> job, Check check) {
    threads_.emplace_back([name, check, job = std::move(job)] {
      SCOPED_TRACE(name);
      check(*job);
    });
  }

 private:
  std::vector<std::jthread> threads_;
};

// Each worker but the victim names it within the lease, closes within `closing`, and its process ends well.
// Returns the milliseconds until the last one has named it.
long expect_others_name(Job& job, int victim, Clock::time_point hit, milliseconds lease,
                        milliseconds closing) {
  long longest = 0;
  const int workers = static_cast<int>(job.processes.size());
  for (int rank = 0; rank < workers; ++rank) {
    if (rank == victim) continue;
    const auto line = job.processes[rank]->expect("failed", hit + lease + kBusyMachine);
    if (!line) {
      ADD_FAILURE() << "rank " << rank << " said nothing";
      return longest;
    }
    longest = std::max<long>(longest, std::chrono::duration_cast<milliseconds>(Clock::now() - hit).count());
    EXPECT_NE(line->find("DSGD_ERR_WORKER_LOST " + std::to_string(victim) + " "), std::string::npos) << *line;
    EXPECT_NE(line->find("rank " + std::to_string(victim)), std::string::npos) << *line;
    EXPECT_NE(line->find("pid " + std::to_string(job.processes[victim]->pid())), std::string::npos) << *line;
  }
  for (int rank = 0; rank < workers; ++rank) {
    if (rank == victim) continue;
    EXPECT_TRUE(job.processes[rank]->expect("ended", Clock::now() + closing + kBusyMachine))
        << "rank " << rank;
    EXPECT_EQ(job.processes[rank]->wait(), 0) << "rank " << rank << ": the host process did not survive";
  }
  return longest;
}

std::vector<Fault> faults() {
  std::vector<Fault> all;
  static const std::vector<std::pair<const char*, std::vector<std::string>>> kWork = {
      {"steps", {"steps", "1000"}},
      {"big_steps", {"steps", "500000"}},
      {"overlap", {"overlap", "300000"}},
      {"allreduce", {"allreduce", "1000000"}},
      {"barrier", {"barrier"}}};
  for (const auto& [name, work] : kWork) {
    for (int signal : {SIGKILL, SIGSTOP}) all.push_back({name, work, signal, 2, false});
  }
  for (int signal : {SIGKILL, SIGSTOP}) {
    all.push_back({"steps_ps", {"steps", "300000"}, signal, 2, false, {"DSGD_STRATEGY=ps"}});
    all.push_back({"steps_simple", {"steps", "300000"}, signal, 2, false, {"DSGD_STRATEGY=simple"}});
    all.push_back({"steps_simple_driver", {"steps", "300000"}, signal, 0, false, {"DSGD_STRATEGY=simple"}});
    all.push_back({"steps_head_in_victim", {"steps", "100000"}, signal, 0, true});
    all.push_back({"steps_head_in_survivor", {"steps", "100000"}, signal, 3, true});
  }
  return all;
}

TEST(Faults, SurvivorsNameTheVictimWithinTheLeaseAndGoOn) {
  Finishing finishing;
  dsgd_test::Thinned jobs(1, 3);
  for (const Fault& fault : faults()) {
    if (jobs.skip_next()) continue;
    const std::string name = std::string(fault.name) + (fault.signal == SIGKILL ? "_killed" : "_stopped");
    SCOPED_TRACE(name);
    auto job = std::make_unique<Job>(4, fault.work, fault.head_in_worker, fault.settings);
    job->expect_all("joined");
    job->expect_all("going");
    if (HasFatalFailure()) return;
    const auto hit = Clock::now();
    kill(job->processes[fault.victim]->pid(), fault.signal);
    finishing.add(name, std::move(job), [name, hit, victim = fault.victim](Job& hurt) {
      RecordProperty(name + "_ms", std::to_string(expect_others_name(hurt, victim, hit, kLease, kLease)));
    });
  }
}

// No worker has connected to the stopped one before dsgd_start, and dsgd_close must not wait for such a
// connection.
TEST(Stopped, BeforeTheStartItIsNamedAndTheOthersCloseSoon) {
  Finishing finishing;
  for (const bool head_in_worker : {false, true}) {
    const std::string name = head_in_worker ? "the head is rank 0" : "the head is apart";
    SCOPED_TRACE(name);
    auto job = std::make_unique<Job>(4, std::vector<std::string>{"wait"}, head_in_worker);
    job->expect_all("joined");
    if (HasFatalFailure()) return;
    kill(job->processes[1]->pid(), SIGSTOP);
    for (int rank : {0, 2, 3}) kill(job->processes[rank]->pid(), SIGUSR1);
    finishing.add(name, std::move(job),
                  [hit = Clock::now()](Job& hurt) { expect_others_name(hurt, 1, hit, kLease, kLease); });
  }
}

// At a different moment of the start each time, so that it has received some messages of the others and not
// the rest. The exact bound, at every state, is shown by the simulation (start_test.cc).
TEST(Stopped, DuringTheStartTheOthersCloseWithinALease) {
  static constexpr milliseconds kShortLease{dsgd_test::kSanitized ? 2000 : 500},
      kClosing{1100};  // of dsgd_close: a lease, 100 ms, and a second
  Finishing finishing;
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    const int victim = 3 - round % 3;
    auto job = std::make_unique<Job>(4, std::vector<std::string>{"wait"}, round % 2 == 0,
                                     std::vector<std::string>{}, kShortLease);
    job->expect_all("joined");
    if (HasFatalFailure()) return;
    for (auto& process : job->processes) kill(process->pid(), SIGUSR1);
    const auto stop = Clock::now() + std::chrono::microseconds(200) * round;
    while (Clock::now() < stop) {
    }
    kill(job->processes[victim]->pid(), SIGSTOP);
    finishing.add("round " + std::to_string(round), std::move(job), [victim, hit = Clock::now()](Job& hurt) {
      expect_others_name(hurt, victim, hit, kShortLease, kShortLease + kClosing);
    });
  }
}

TEST(Deadline, AWorkerThatDoesNotCallIsNamedWhenTheStepTimeoutRunsOut) {
  Job job(3, {"absent-rank", "1"}, false, {"DSGD_STEP_TIMEOUT=700ms"});
  job.expect_all("going");
  if (HasFatalFailure()) return;
  for (int rank : {0, 2}) {
    const auto line = job.processes[rank]->expect("failed", Clock::now() + milliseconds(700) + kBusyMachine);
    ASSERT_TRUE(line) << "rank " << rank;
    EXPECT_NE(line->find("DSGD_ERR_TIMEOUT 1 "), std::string::npos) << *line;
    EXPECT_NE(line->find("still waiting for rank 1"), std::string::npos) << *line;
  }
}

// The lease is long, and dsgd_close with time limit 0 must not wait for it.
TEST(Close, WithTimeLimitZeroDoesNotWaitForAStoppedWorker) {
  Finishing finishing;
  for (const bool head_in_worker : {false, true}) {
    for (size_t victim : {0, 1}) {
      const std::string name =
          "stopped is rank " + std::to_string(victim) + (head_in_worker ? ", the head is rank 0" : "");
      SCOPED_TRACE(name);
      auto job = std::make_unique<Job>(3, std::vector<std::string>{"close"}, head_in_worker,
                                       std::vector<std::string>{}, std::chrono::minutes(5));
      job->expect_all("going");
      if (HasFatalFailure()) return;
      kill(job->processes[victim]->pid(), SIGSTOP);
      for (size_t rank = 0; rank < 3; ++rank) {
        if (rank != victim) kill(job->processes[rank]->pid(), SIGUSR1);
      }
      finishing.add(name, std::move(job), [victim](Job& hurt) {
        for (size_t rank = 0; rank < 3; ++rank) {
          if (rank == victim) continue;
          EXPECT_TRUE(hurt.processes[rank]->expect("closed", Clock::now() + std::chrono::seconds(60)))
              << "rank " << rank;
          EXPECT_EQ(hurt.processes[rank]->wait(), 0);
        }
      });
    }
  }
}

// One call has no limit, the other one 0.1 s. The lease is long.
TEST(Close, TwiceEndsAtTheEarlierOfTheLimits) {
  Job job(2, {"close-twice"}, false, {"DSGD_MIN_WORKERS=1"}, std::chrono::minutes(5));
  job.expect_all("going");
  if (HasFatalFailure()) return;
  kill(job.processes[1]->pid(), SIGSTOP);
  kill(job.processes[0]->pid(), SIGUSR1);
  EXPECT_TRUE(job.processes[0]->expect("closed", Clock::now() + std::chrono::seconds(60)));
}

// Each element of each mean is checked by the workers (worker.c).
TEST(Departure, BetweenStepsLetsTheOthersTrainOn) {
  dsgd_test::Thinned jobs;
  for (const char* algorithm : {"direct", "halving_doubling", "ring"}) {
    for (const bool head_in_worker : {false, true}) {
      for (size_t leaver : {0, 2}) {
        if (jobs.skip_next()) continue;
        SCOPED_TRACE(std::string(algorithm) + ", rank " + std::to_string(leaver) + " leaves" +
                     (head_in_worker ? ", the head is rank 0" : ""));
        Job job(3, {"depart", std::to_string(leaver)}, head_in_worker,
                {std::string("DSGD_ALGORITHM=") + algorithm});
        for (size_t rank = 0; rank < 3; ++rank) {
          Process& process = *job.processes[rank];
          EXPECT_TRUE(
              process.expect(rank == leaver ? "closed" : "trained", Clock::now() + std::chrono::seconds(60)))
              << "rank " << rank << " said:\n"
              << process.said();
          EXPECT_EQ(process.wait(), 0);
        }
      }
    }
  }
}

TEST(Abort, EveryWorkerLearnsWhoAbortedAndWhy) {
  Job job(3, {"abort", "1"}, false);
  job.expect_all("going");
  for (int rank = 0; rank < 3; ++rank) {
    const auto line = job.processes[rank]->expect("failed", Clock::now() + kLease + kBusyMachine);
    ASSERT_TRUE(line) << "rank " << rank;
    EXPECT_NE(line->find("DSGD_ERR_ABORTED 1 "), std::string::npos) << *line;
    EXPECT_NE(line->find("the host has had enough"), std::string::npos) << *line;
    EXPECT_EQ(job.processes[rank]->wait(), 0);
  }
}

// Occupies the head's address and answers nothing, as the head of an earlier job that has not ended yet.
class Squatter {
 public:
  Squatter() { EXPECT_EQ(listen(socket_.fd(), 100), 0); }
  void turn_away(int connections) {
    for (int i = 0; i < connections; ++i) close(accept(socket_.fd(), nullptr, nullptr));
  }
  const std::string& address() const { return socket_.address(); }

 private:
  const dsgd_test::LoopbackSocket socket_;
};

// TCP sockets of a process on which it listens.
size_t listening(pid_t pid) {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    own.insert(std::filesystem::read_symlink(entry, gone).string());
  }
  size_t count = 0;
  std::ifstream table("/proc/" + std::to_string(pid) + "/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string word[10];
    for (std::string& next : word) words >> next;
    count += word[3] == "0A" && own.count("socket:[" + word[9] + "]");
  }
  return count;
}

TEST(Head, IsStartedByAWaitingWorkerWhenTheAddressIsFree) {
  auto squatter = std::make_unique<Squatter>();
  Job job(3, {"wait"}, true,
          {"DSGD_HEAD=" + squatter->address(), "DSGD_EMBED_HEAD=auto", "DSGD_INIT_TIMEOUT=60s"});
  squatter->turn_away(20);  // then each of the three workers has tried, and some of them more than once
  squatter.reset();
  job.expect_all("joined");
  for (auto& process : job.processes)
    EXPECT_EQ(listening(process->pid()), 1u) << "each on one port, the head's worker too";
}

TEST(Rendezvous, AnotherNumberOfWorkersThanTheHeadsIsRefused) {
  Job job(2, {"init"}, false, {"DSGD_INIT_TIMEOUT=1s", "DSGD_NUM_WORKERS=3"});
  for (auto& process : job.processes) {
    const auto line = process->expect("failed", Clock::now() + milliseconds(1000) + kBusyMachine);
    ASSERT_TRUE(line);
    EXPECT_NE(line->find("DSGD_ERR_MISMATCH"), std::string::npos) << *line;  // the head expects 2
  }
}

TEST(Rendezvous, AllWorkersMayCloseAtOnceAlsoTheOneThatHostsTheHead) {
  Job job(4, {"init"}, true);
  for (auto& process : job.processes) {
    EXPECT_TRUE(process->expect("ended", Clock::now() + std::chrono::seconds(30)));
    EXPECT_EQ(process->wait(), 0);
  }
}

}  // namespace

// Objects on their way between workers: how long a put takes in virtual time, and what it leaves behind when
// a worker is lost, leaves, or is late, or when another worker deletes the object meanwhile.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cluster.h"
#include "tests/unit/sanitizer.h"
#include "tests/unit/wait_for.h"

namespace dsgd::simulation::object_test {
namespace {

using namespace std::chrono_literals;
using transport::Death;
using transport::Duration;
using Bytes = std::vector<uint8_t>;

Bytes pattern(size_t size, int seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<uint8_t>(i * 7 + i / 251 + static_cast<size_t>(seed));
  return bytes;
}

Status put(Session& session, const std::string& name, const Bytes& bytes, Duration timeout = {}) {
  return wait_for(session, session.object_put(name, bytes, Object::kNoType, {}, Session::Mode::kWait,
                                              {.timeout = timeout}));
}

// kInternal: the object differs from `want`.
Status get(Session& session, const std::string& name, const Bytes& want, Duration timeout = {}) {
  const auto got = session.object_get(name, Session::Mode::kWait, {.timeout = timeout});
  const Status status = wait_for(session, got);
  if (status.ok() && got.value()->object()->bytes != want)
    return Status(Code::kInternal, "the object is another one");
  return status;
}

Status remove(Session& session, const std::string& name) {
  return wait_for(session, session.object_delete(name, Session::Mode::kWait));
}

Status meet(Session& session) { return wait_for(session, session.barrier(Session::Mode::kWait)); }

ClusterOptions options_of(int workers, uint64_t seed = 1) {
  ClusterOptions options{.workers = workers, .separate_head = true, .seed = seed};
  options.network.delay = {100us, 200us};
  return options;
}

Duration duration_of(const NotedCall* call) { return call ? call->ended - call->began : Duration::max(); }

// An answer takes 20 ms. If each part of 256 KiB waited for the answer to the one before, 32 MiB would
// take 2.5 s per hop.
TEST(PutTime, HasManyPartsOnTheWayAtOnce) {
  const Bytes bytes = pattern(32 << 20, 1);
  for (int workers = 2; workers <= 4; ++workers) {
    for (const int putter : {0, workers - 1}) {
      ClusterOptions options = options_of(workers);
      options.settings["receive_memory"] = "256M";
      options.network.delay = {10ms, 10ms};
      options.network.socket_buffer = 8 << 20;
      Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
        cluster.note(rank, "meet", [&] { return meet(session); });
        if (rank == putter) cluster.note(rank, "put", [&] { return put(session, "x", bytes); });
        cluster.note(rank, "get", [&] { return get(session, "x", bytes); });
        cluster.note(rank, "meet", [&] { return meet(session); });
      });
      ASSERT_TRUE(cluster.run_until_ended(600s));
      for (int rank = 0; rank < workers; ++rank)
        EXPECT_FALSE(cluster.first_failure(rank)) << cluster.history(rank);
      EXPECT_LT(duration_of(cluster.call(putter, "put")), 1s) << workers << " workers\n"
                                                              << cluster.history(putter);
    }
  }
}

// The links from the putter to all workers but rank 0 (or rank 1, if rank 0 puts) are slow. The data come on
// other ways.
TEST(PutTime, IsThatOfAChain) {
  constexpr int kWorkers = 4;
  const Bytes bytes = pattern(16 << 20, 2);
  for (int putter = 0; putter < kWorkers; ++putter) {
    ClusterOptions options = options_of(kWorkers);
    options.settings["receive_memory"] = "4M";
    Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
      cluster.note(rank, "meet", [&] { return meet(session); });
      if (rank == putter) {
        for (int other = 0; other < kWorkers; ++other) {
          if (other == putter || other == (putter == 0 ? 1 : 0)) continue;
          cluster.world.set_delay(cluster.process(putter), cluster.process(other), {100ms, 100ms});
        }
        cluster.note(rank, "put", [&] { return put(session, "x", bytes); });
      }
      cluster.note(rank, "get", [&] { return get(session, "x", bytes); });
      cluster.note(rank, "meet", [&] { return meet(session); });
    });
    ASSERT_TRUE(cluster.run_until_ended(600s));
    for (int rank = 0; rank < kWorkers; ++rank)
      EXPECT_FALSE(cluster.first_failure(rank)) << cluster.history(rank);
    EXPECT_LT(duration_of(cluster.call(putter, "put")), 2s) << "rank " << putter << " puts\n"
                                                            << cluster.history(putter);
  }
}

// A worker dies at some moment of a put. The others learn it, wherever they and it stand in the chain.
TEST(LostWorker, EndsAPutAtAnyMoment) {
  const Bytes bytes = pattern(2 << 20, 3);
  int whole = 0, failed = 0;
  for (int workers = 3; workers <= 5; ++workers) {
    for (int victim = 0; victim < workers; ++victim) {
      for (int moment = 0; moment < 8; ++moment) {
        const int putter = (victim + moment) % workers;
        const Death death = moment % 2 ? Death::kReset : Death::kSilent;
        ClusterOptions options = options_of(workers, static_cast<uint64_t>(moment) + 1);
        Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
          cluster.note(rank, "meet", [&] { return meet(session); });
          if (rank == putter) {
            cluster.world.at(cluster.world.now() + moment * 3ms + 100us, [&cluster, victim, death] {
              cluster.world.kill(cluster.process(victim), death);
            });
            cluster.note(rank, "put", [&] { return put(session, "x", bytes); });
          }
          cluster.note(rank, "get", [&] { return get(session, "x", bytes); });
          cluster.note(rank, "meet", [&] { return meet(session); });
        });
        const std::string what = std::to_string(workers) + " workers, rank " + std::to_string(putter) +
                                 " puts, rank " + std::to_string(victim) + " dies, moment " +
                                 std::to_string(moment) + "\n";
        ASSERT_TRUE(cluster.run_until_ended(20s)) << what << cluster.histories();
        for (int rank = 0; rank < workers; ++rank) {
          if (rank == victim) continue;
          for (const NotedCall& call : cluster.calls(rank)) {
            if (call.name == "close" || call.name == "open") continue;
            if (call.name == "put" || call.name == "get") ++(call.status.ok() ? whole : failed);
            if (call.status.ok()) continue;
            EXPECT_EQ(call.status.code(), Code::kWorkerLost) << what << cluster.history(rank);
            EXPECT_EQ(call.status.rank(), victim) << what << cluster.history(rank);
          }
        }
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(failed, 0);
}

// The others go on in another view. Each of them has the whole object or none, and a worker can delete what
// is left and put the name again, for all.
TEST(LostPutter, LeavesWholeObjectsOrNoneAndANameThatCanBePutAgain) {
  const Bytes again = pattern(300'000, 8);
  int had = 0, had_not = 0;
  for (const size_t size : {size_t{1000}, size_t{2} << 20}) {
    const Bytes bytes = pattern(size, 7);
    for (int putter = 0; putter < 3; ++putter) {
      for (int moment = 0; moment < 24; ++moment) {
        ClusterOptions options = options_of(3, static_cast<uint64_t>(moment) + 1);
        options.settings = {{"min_workers", "1"}, {"lease", "500ms"}};
        int with = 0, without = 0;
        Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
          const auto until = [&](transport::Time time) {
            cluster.pass_time(rank, time - cluster.world.now());
          };
          const auto repeated = [&](const char* name, const std::function<Status()>& call) {
            Status status = call();
            while (status.code() == Code::kViewChanged) {
              cluster.pass_time(rank, 10ms);
              status = call();
            }
            cluster.note(rank, name, [&] { return status; });
            return status;
          };
          (void)meet(session);  // the loss may end it
          const transport::Time begun = cluster.world.now();
          if (rank == putter) {
            cluster.world.at(begun + moment * (size > 1000 ? 1ms : 30us),
                             [&cluster, rank] { cluster.world.kill(cluster.process(rank), Death::kReset); });
            (void)put(session, "x", bytes);
            return until(begun + 10s);
          }
          const Status got = repeated("get", [&] { return get(session, "x", bytes, 1s); });
          ++(got.ok() ? with : without);
          until(begun + 3s);
          if (rank == (putter == 0 ? 1 : 0)) {
            repeated("delete", [&] { return remove(session, "x"); });
            repeated("put", [&] { return put(session, "x", again); });
          }
          until(begun + 6s);
          repeated("get again", [&] { return get(session, "x", again, 1s); });
        });
        const std::string what = std::to_string(size) + " bytes, rank " + std::to_string(putter) +
                                 " puts and dies, moment " + std::to_string(moment) + "\n";
        ASSERT_TRUE(cluster.run_until_ended(60s)) << what << cluster.histories();
        for (int rank = 0; rank < 3; ++rank) {
          if (rank == putter) continue;
          for (const NotedCall& call : cluster.calls(rank)) {
            const bool absent = (call.name == "get" && call.status.code() == Code::kTimeout) ||
                                (call.name == "delete" && call.status.code() == Code::kNotFound);
            EXPECT_TRUE(call.status.ok() || absent) << what << cluster.histories();
          }
        }
        had += with, had_not += without;
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(had, 0);
  EXPECT_GT(had_not, 0);
}

// A worker closes its session at some moment of a put. The put names it, or has ended before; all others get
// the object, and the next one, too.
TEST(Leaver, LeavesTheObjectToTheOthers) {
  const Bytes bytes = pattern(2 << 20, 4), next = pattern(100'000, 5);
  int named = 0;
  for (int workers = 3; workers <= 5; ++workers) {
    for (int leaver = 1; leaver < workers; ++leaver) {
      for (int moment = 0; moment < 10; ++moment) {
        int putter = (leaver + 1 + moment) % workers;
        if (putter == leaver) putter = 0;
        Cluster cluster(options_of(workers, static_cast<uint64_t>(moment) + 1),
                        [&](Cluster& cluster, Session& session, int rank) {
                          cluster.note(rank, "meet", [&] { return meet(session); });
                          if (rank == leaver) {
                            cluster.pass_time(rank, moment * 2ms);
                            return;
                          }
                          const auto put_it = [&](const std::string& name, const Bytes& object) {
                            const Status status = put(session, name, object);
                            if (status.code() != Code::kWorkerLost || status.rank() != leaver) return status;
                            ++named;
                            return Status();
                          };
                          if (rank == putter) cluster.note(rank, "put", [&] { return put_it("x", bytes); });
                          cluster.note(rank, "get", [&] { return get(session, "x", bytes, 30s); });
                          if (rank == 0) cluster.note(rank, "next put", [&] { return put_it("y", next); });
                          cluster.note(rank, "next get", [&] { return get(session, "y", next, 30s); });
                          cluster.pass_time(rank, 100ms);  // nobody else leaves meanwhile
                        });
        ASSERT_TRUE(cluster.run_until_ended(300s));
        for (int rank = 0; rank < workers; ++rank) {
          ASSERT_FALSE(cluster.first_failure(rank))
              << workers << " workers, rank " << putter << " puts, rank " << leaver << " leaves, moment "
              << moment << "\n"
              << cluster.histories();
        }
      }
    }
  }
  EXPECT_GT(named, 0);
}

// A worker that has the object closes its session while others still fetch theirs from it. The put succeeds.
TEST(Leaver, HasTheObjectAndIsNotNamed) {
  constexpr int kWorkers = 4;
  const Bytes bytes = pattern(2 << 20, 6);
  for (int putter = 0; putter < kWorkers; ++putter) {
    Cluster cluster(options_of(kWorkers), [&](Cluster& cluster, Session& session, int rank) {
      cluster.note(rank, "meet", [&] { return meet(session); });
      if (rank == putter) cluster.note(rank, "put", [&] { return put(session, "x", bytes); });
      cluster.note(rank, "get", [&] { return get(session, "x", bytes, 30s); });
    });
    ASSERT_TRUE(cluster.run_until_ended(300s));
    for (int rank = 0; rank < kWorkers; ++rank) {
      EXPECT_FALSE(cluster.first_failure(rank)) << "rank " << putter << " puts\n" << cluster.histories();
    }
  }
}

// A worker is stopped for a while. The put that runs out of time names it; then the name can be deleted and
// put again.
TEST(LateWorker, IsNamedAndTheNameCanBePutAgain) {
  constexpr int kWorkers = 4;
  const Bytes bytes = pattern(2 << 20, 7), again = pattern(3 << 20, 8);
  for (int late = 0; late < kWorkers; ++late) {
    const int putter = (late + 1) % kWorkers, deleter = (late + 2) % kWorkers;
    ClusterOptions options = options_of(kWorkers);
    options.settings["lease"] = "10s";
    Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
      cluster.note(rank, "meet", [&] { return meet(session); });
      if (rank == putter) {
        cluster.world.pause(cluster.process(late));
        const Status status = put(session, "x", bytes, 300ms);
        cluster.world.resume(cluster.process(late));
        cluster.note(rank, "late put", [&] {
          const bool right = status.code() == Code::kTimeout && status.rank() == late;
          return right ? Status()
                       : Status(Code::kInternal, std::string("it ended so: ") + code_name(status.code()) +
                                                     " " + status.message());
        });
      }
      cluster.note(rank, "meet", [&] { return meet(session); });
      if (rank == deleter) {
        const Status status = remove(session, "x");
        cluster.note(rank, "delete", [&] { return status.code() == Code::kNotFound ? Status() : status; });
      }
      cluster.note(rank, "meet", [&] { return meet(session); });
      if (rank == late) cluster.note(rank, "put", [&] { return put(session, "x", again); });
      cluster.note(rank, "get", [&] { return get(session, "x", again); });
      cluster.note(rank, "meet", [&] { return meet(session); });
    });
    ASSERT_TRUE(cluster.run_until_ended(300s));
    for (int rank = 0; rank < kWorkers; ++rank) {
      EXPECT_FALSE(cluster.first_failure(rank)) << "rank " << late << " is late\n" << cluster.histories();
    }
  }
}

// An object is deleted at some moment of its put. No part that is on its way brings it back, and the name can
// be put again.
TEST(DeletedObject, DoesNotComeBack) {
  const Bytes again = pattern(300'000, 10);
  int deleted = 0;
  for (const size_t size : {size_t{1000}, size_t{2} << 20}) {
    const Bytes bytes = pattern(size, 9);
    for (uint64_t seed = 1; seed <= static_cast<uint64_t>(60 / dsgd_test::one_of(2, 4)); ++seed) {
      const int workers = 3 + static_cast<int>(seed % 3);
      const int putter = static_cast<int>(seed / 3) % workers,
                deleter = static_cast<int>(seed / 7 + 1) % workers;
      ClusterOptions options = options_of(workers, seed);
      options.network.delay = {20us, 2ms, 0.1, 20ms};
      Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
        cluster.note(rank, "meet", [&] { return meet(session); });
        std::shared_ptr<Operation> putting;
        if (rank == putter) {
          auto begun = session.object_put("x", bytes, Object::kNoType, {}, Session::Mode::kWait);
          if (begun.ok()) putting = begun.value();
        }
        if (rank == deleter) {
          cluster.pass_time(rank, seed * 300us);
          Status status = remove(session, "x");
          deleted += status.ok();
          cluster.note(rank, "delete", [&] { return status.code() == Code::kNotFound ? Status() : status; });
        }
        if (putting) cluster.note(rank, "put", [&] { return session.wait(*putting, -1ms); });
        cluster.note(rank, "meet", [&] { return meet(session); });
        if (rank == deleter) {  // if it was put too late for the first
          const Status status = remove(session, "x");
          cluster.note(rank, "delete", [&] { return status.code() == Code::kNotFound ? Status() : status; });
        }
        cluster.note(rank, "meet", [&] { return meet(session); });
        cluster.pass_time(rank, 100ms);
        cluster.note(rank, "none", [&] {
          const Status status = get(session, "x", bytes, 1ms);
          return status.code() == Code::kTimeout ? Status() : Status(Code::kInternal, "it is here");
        });
        cluster.note(rank, "meet", [&] { return meet(session); });
        if (rank == deleter) cluster.note(rank, "next put", [&] { return put(session, "x", again); });
        cluster.note(rank, "next get", [&] { return get(session, "x", again); });
        cluster.note(rank, "meet", [&] { return meet(session); });
      });
      ASSERT_TRUE(cluster.run_until_ended(300s));
      for (int rank = 0; rank < workers; ++rank) {
        ASSERT_FALSE(cluster.first_failure(rank)) << size << " bytes, seed " << seed << ", rank " << putter
                                                  << " puts, rank " << deleter << " deletes\n"
                                                  << cluster.histories();
      }
    }
  }
  EXPECT_GT(deleted, 0);
}

// A worker that has joined the running job gets what others have put, then deletes one and puts another.
TEST(Object, AWorkerThatJoinsHasTheObjectsOfTheJob) {
  const Bytes small(100, 's'), large(300'000, 'l'), late(200'000, 'n');
  const ClusterOptions options{.joiners = 1, .separate_head = true, .settings = {{"max_workers", "3"}}};
  Cluster cluster(options, [&](Cluster& cluster, Session& session, int worker) {
    const int64_t count = 100;
    Parameter* const parameter = session.add_parameter("p", DType::kFloat32, {&count, 1}, true).value();
    (void)session.alloc(session.add_replica("cpu").value(), parameter);
    if (!cluster.note(worker, "start", [&] { return session.start(); })) return;
    if (worker == 0) {
      cluster.note(worker, "put", [&] { return put(session, "small", small); });
      cluster.note(worker, "put", [&] { return put(session, "large", large); });
    }
    if (worker == 2) {
      cluster.note(worker, "get", [&] { return get(session, "small", small); });
      cluster.note(worker, "get", [&] { return get(session, "large", large); });
      cluster.note(worker, "delete", [&] { return remove(session, "large"); });
      cluster.note(worker, "put", [&] { return put(session, "late", late); });
    }
    StepResult result;
    for (int k = 0; result.size < 3 && k < 10'000; ++k) {
      if (!cluster.note(worker, "step", [&] { return session.step(1, &result); })) return;
    }
    cluster.note(worker, "get", [&] { return get(session, "late", late); });
    while (!result.all_done) {
      if (!cluster.note(worker, "step", [&] { return session.step(0, &result); })) return;
    }
  });
  for (int worker = 0; worker < 2; ++worker) ASSERT_TRUE(cluster.run_until_noted(worker, "step", 10s));
  ASSERT_TRUE(cluster.run_until_noted(0, "put", 10s));
  cluster.start_worker(2);
  ASSERT_TRUE(cluster.run_until_ended(60s));
  for (int worker = 0; worker < 3; ++worker)
    EXPECT_FALSE(cluster.first_failure(worker)) << cluster.history(worker);
}

// A running job of three workers with the object "x", and of a fourth, which joins and then gets the object
// if `gets`. Runs until `after` after the dsgd_init of the latter.
std::unique_ptr<Cluster> job_that_is_joined(const Bytes& bytes, bool gets, Duration after) {
  ClusterOptions options = options_of(3);
  options.joiners = 1;
  options.settings = {{"min_workers", "1"}, {"max_workers", "4"}};
  options.network.delay = {2ms, 2ms};
  auto job =
      std::make_unique<Cluster>(options, [&bytes, gets](Cluster& cluster, Session& session, int worker) {
        const int64_t count = 100;
        Parameter* const parameter = session.add_parameter("p", DType::kFloat32, {&count, 1}, true).value();
        (void)session.alloc(session.add_replica("cpu").value(), parameter);
        if (worker == 3 && gets && get(session, "x", bytes).code() != Code::kState) std::abort();
        if (!cluster.note(worker, "start", [&] { return session.start(); })) return;
        if (worker == 0) cluster.note(worker, "put", [&] { return put(session, "x", bytes); });
        if (worker == 3 && gets && !cluster.note(worker, "get", [&] { return get(session, "x", bytes); }))
          return;
        StepResult result;
        for (int k = 0; k < 20; ++k) {
          if (!cluster.note(worker, "step", [&] { return session.step(1, &result); })) return;
          cluster.pass_time(worker, 50ms);
        }
      });
  EXPECT_TRUE(job->run_until_noted(0, "step", 10s));
  job->start_worker(3);
  EXPECT_TRUE(job->run_until_noted(3, "open", 10s));
  job->world.run_for(after);
  return job;
}

// Ranks 0 and 1 cannot reach each other, so the head evicts one of them while rank 2 puts objects.
TEST(Object, APutEndsWithTheViewIfAnotherWorkerIsEvicted) {
  const Bytes bytes = pattern(64 << 10, 5);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    ClusterOptions options = options_of(3, seed);
    options.settings = {{"min_workers", "1"}, {"lease", "500ms"}, {"step_timeout", "20s"}};
    options.network.delay = {0ms, 3ms};
    Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
      if (!Cluster::train(cluster, session, rank, 2)) return;
      if (rank == 0) cluster.world.block(cluster.process(0), cluster.process(1));
      auto step = session.step_begin(1);
      for (int k = 0; rank == 2; ++k) {
        if (!cluster.note(rank, "put", [&] { return put(session, std::to_string(k), bytes); })) break;
      }
      cluster.note(rank, "step", [&] { return session.wait(*step.value(), -1ms); });
    });
    ASSERT_TRUE(cluster.run_until_ended(60s)) << cluster.histories();
    const NotedCall* const failed = cluster.first_failure(2);
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->name, "put");
    EXPECT_EQ(failed->status.code(), Code::kViewChanged) << failed->status.message();
    if (HasFailure()) return;
  }
}

// A worker that joins dies while it fetches the objects. The others go on without it.
TEST(Object, TheOthersOutliveAWorkerThatDiesWhileItGetsThem) {
  const Bytes bytes = pattern(2'000'000, 1);
  int without = 0;  // jobs that went on before it had taken part
  for (Duration after = 5ms; after <= 85ms; after += 10ms) {
    SCOPED_TRACE(std::to_string(after / 1ms) + " ms after its dsgd_init");
    const auto job = job_that_is_joined(bytes, false, after);
    without += !job->call(3, "start");
    job->world.kill(job->process(3), Death::kReset);
    ASSERT_TRUE(job->run_until_ended(60s));
    for (int worker = 0; worker < 3; ++worker)
      EXPECT_FALSE(job->first_failure(worker)) << job->history(worker);
  }
  EXPECT_GT(without, 0);
}

// Another worker dies while one that joins fetches the objects. It gets them in the next view.
TEST(Object, AWorkerThatJoinsHasTheObjectsWhateverViewsFollow) {
  const Bytes bytes = pattern(10'000'000, 1);
  int joined_late = 0;  // jobs whose workers died before it had joined
  for (Duration after = 5ms; after <= 305ms; after += dsgd_test::one_of(2, 6) * 10ms) {
    SCOPED_TRACE(std::to_string(after / 1ms) + " ms after its dsgd_init");
    const auto job = job_that_is_joined(bytes, true, after);
    joined_late += !job->call(3, "start");
    job->world.kill(job->process(2), Death::kReset);
    ASSERT_TRUE(job->run_until_ended(100s));
    for (int worker : {0, 1, 3}) EXPECT_FALSE(job->first_failure(worker)) << job->history(worker);
  }
  EXPECT_GT(joined_late, 3 / dsgd_test::one_of(2, 6));
}

}  // namespace
}  // namespace dsgd::simulation::object_test

// Tests of the simulated world alone: its clock, its repeatability, its faults, its programs.
#include "transport/sim/world.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "conformance.h"

namespace dsgd::transport {
namespace {

// Two processes; the second one listens at node1:7700. Everything runs on the loops.
class Pair {
 public:
  explicit Pair(uint64_t seed, SimOptions options = {}) : world(seed, options) {
    for (int i = 0; i < 2; ++i) {
      process[i] = world.start_process("node" + std::to_string(i));
      environment[i] = world.environment(process[i]);
      network[i] = std::move(environment[i]->new_network("test", 1 << 20)).value();
    }
    acceptor.network = network[1].get();
    acceptor.handler = &recorder;
    listener = std::move(network[1]->listen("0.0.0.0:7700", &acceptor)).value();
  }

  void dial(Time deadline = kNever) {
    network[0]->loop().post([this, deadline] {
      DialOptions options;
      options.deadline = deadline;
      options.closed = [this](const Status& why) { closed.push_back(why); };
      network[0]->dial("node1:7700", std::move(options),
                       [this](Result<std::unique_ptr<ClientChannel>> result) {
                         dialled.push_back(result.status());
                         if (result.ok()) channel = std::move(result).value();
                       });
    });
  }
  void connect() {
    dial();
    ASSERT_TRUE(run_until([&] { return channel != nullptr; }));
  }
  // Starts a call; its end is added to `answers`.
  void call(uint64_t sequence, Time deadline = kNever) {
    network[0]->loop().post([this, sequence, deadline] {
      channel->call(Watch{sequence}, deadline,
                    [this](Result<Message> reply) { answers.push_back(reply.status()); });
    });
  }
  bool run_until(const std::function<bool()>& predicate, Duration limit = 10s) {
    return world.run_until(predicate, world.now() + limit);
  }

  SimWorld world;
  ProcessId process[2];
  Recorder recorder;
  Acceptor acceptor;
  std::unique_ptr<Environment> environment[2];
  std::unique_ptr<Network> network[2];
  std::unique_ptr<Listener> listener;
  std::unique_ptr<ClientChannel> channel;
  std::vector<Status> dialled, closed, answers;
};

// A few seconds of traffic with faults; what it does depends on the world alone.
uint64_t traffic(uint64_t seed) {
  SimOptions options;
  options.delay.slow_chance = 0.05;
  Pair pair(seed, options);
  pair.connect();
  const auto source = bytes_of(200000, 1);
  for (int i = 0; i < 30; ++i) {
    pair.call(i, pair.world.now() + 50ms);
    pair.network[0]->loop().post([&, i] {
      BulkHeader header;
      header.operation = i % 3;
      pair.channel->send(header, source, [&](const Status& status) { pair.answers.push_back(status); });
      if (i == 20) pair.channel->revoke(1);
    });
    pair.world.run_for(1ms);
  }
  pair.world.at(pair.world.now() + 2ms,
                [&] { pair.world.break_connections(pair.process[0], pair.process[1]); });
  EXPECT_TRUE(pair.run_until([&] { return !pair.closed.empty(); }));
  return pair.world.trace_hash();
}

TEST(Sim, TheSameSeedGivesTheSameTrace) {
  for (uint64_t seed = 1; seed <= 5; ++seed) EXPECT_EQ(traffic(seed), traffic(seed)) << "seed " << seed;
}

TEST(Sim, DifferentSeedsGiveDifferentTraces) {
  std::vector<uint64_t> hashes;
  for (uint64_t seed = 1; seed <= 10; ++seed) hashes.push_back(traffic(seed));
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

TEST(Sim, VirtualTimeCostsNoTime) {
  SimWorld world(1);
  const Time start = world.now();
  world.run_for(24h);
  EXPECT_EQ(world.now(), start + 24h);
  EXPECT_FALSE(world.run_until([] { return false; }, world.now() + 24h));
  EXPECT_EQ(world.now(), start + 48h);
}

TEST(Sim, APausedProcessStandsStillAndGoesOn) {
  Pair pair(3);
  pair.connect();
  pair.world.pause(pair.process[1]);
  pair.call(1);
  pair.world.run_for(5s);
  EXPECT_TRUE(pair.recorder.order.empty());
  EXPECT_TRUE(pair.closed.empty()) << "nobody notices";
  bool posted = false, fired = false;
  Time when{};
  pair.network[1]->loop().post([&] { posted = true; });
  pair.world.run_for(1s);
  EXPECT_FALSE(posted);
  pair.world.resume(pair.process[1]);
  ASSERT_TRUE(pair.run_until([&] { return posted && pair.answers.size() == 1; }));
  EXPECT_TRUE(pair.answers[0].ok());

  // A timer that came due during the pause fires late, and sees the time.
  pair.network[1]->loop().post([&] {
    const Time due = pair.network[1]->loop().now() + 10ms;
    pair.network[1]->loop().schedule(due, [&] {
      when = pair.network[1]->loop().now();
      fired = true;
    });
  });
  pair.world.run_for(1ms);
  const Time resumed = pair.world.now() + 1s;
  pair.world.pause(pair.process[1]);
  pair.world.at(resumed, [&] { pair.world.resume(pair.process[1]); });
  ASSERT_TRUE(pair.run_until([&] { return fired; }));
  EXPECT_GE(when, resumed);
}

TEST(Sim, AReceiverThatStandsStillFillsTheSocket) {
  SimOptions options;
  options.socket_buffer = 100000;
  Pair pair(4, options);
  pair.connect();
  pair.world.pause(pair.process[1]);
  auto source = bytes_of(1 << 20, 1);
  const auto original = source;
  bool done = false;
  pair.network[0]->loop().post([&] { pair.channel->send({}, source, [&](const Status&) { done = true; }); });
  pair.world.run_for(10s);
  EXPECT_FALSE(done);
  // Nothing is read from the span after revoke, though most of it is still to be written.
  pair.network[0]->loop().post([&] {
    pair.channel->revoke(0);
    std::fill(source.begin(), source.end(), std::byte{0xee});
  });
  pair.world.run_for(1s);
  pair.world.resume(pair.process[1]);
  ASSERT_TRUE(pair.run_until([&] { return pair.recorder.chunks.size() == 1; }));
  EXPECT_TRUE(pair.recorder.chunks[0].data == original);
  EXPECT_FALSE(done);
}

TEST(Sim, AKilledProcessResetsItsConnections) {
  Pair pair(5);
  pair.connect();
  pair.world.kill(pair.process[1], Death::kReset);
  EXPECT_FALSE(pair.world.alive(pair.process[1]));
  ASSERT_TRUE(pair.run_until([&] { return pair.closed.size() == 1; }, 1s));
  EXPECT_FALSE(pair.closed[0].ok());
  bool ran = false;
  pair.network[1]->loop().post([&] { ran = true; });
  pair.dial();
  ASSERT_TRUE(pair.run_until([&] { return pair.dialled.size() == 2; }, 1s)) << "its port refuses";
  EXPECT_EQ(pair.dialled[1].code(), Code::kUnreachable);
  EXPECT_FALSE(ran) << "its tasks never run again";
  EXPECT_TRUE(pair.recorder.closed.empty());
}

TEST(Sim, AMachineThatDiesIsSilent) {
  Pair pair(6);
  pair.connect();
  pair.world.kill(pair.process[1], Death::kSilent);
  pair.call(1, pair.world.now() + 2s);
  ASSERT_TRUE(pair.run_until([&] { return pair.answers.size() == 1; }));
  EXPECT_EQ(pair.answers[0].code(), Code::kTimeout) << "only the deadline tells";
  EXPECT_TRUE(pair.closed.empty());
}

TEST(Sim, ARestartedProcessTakesThePortAgain) {
  Pair pair(7);
  pair.connect();
  pair.world.kill(pair.process[1], Death::kReset);
  ASSERT_TRUE(pair.run_until([&] { return pair.closed.size() == 1; }));
  auto second = pair.world.environment(pair.world.start_process("node1"));
  EXPECT_NE(second->process_id(), pair.environment[1]->process_id());
  EXPECT_EQ(second->machine(), pair.environment[1]->machine());
  auto network = std::move(second->new_network("test", 1 << 20)).value();
  Recorder recorder;
  Acceptor acceptor;
  acceptor.network = network.get();
  acceptor.handler = &recorder;
  auto listener = network->listen("0.0.0.0:7700", &acceptor);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  pair.channel.reset();
  pair.connect();
  pair.call(1);
  ASSERT_TRUE(pair.run_until([&] { return pair.answers.size() == 1; }));
  EXPECT_TRUE(pair.answers[0].ok());
  EXPECT_EQ(recorder.hellos.size(), 1u);
}

TEST(Sim, ABlockedDirectionDelaysAndLosesNothing) {
  Pair pair(8);
  pair.connect();
  pair.world.block(pair.process[1], pair.process[0]);
  pair.call(1);
  pair.world.run_for(5s);
  EXPECT_EQ(pair.recorder.order.size(), 1u) << "the other direction is open";
  EXPECT_TRUE(pair.answers.empty());
  pair.world.unblock(pair.process[1], pair.process[0]);
  ASSERT_TRUE(pair.run_until([&] { return pair.answers.size() == 1; }, 1s));
  EXPECT_TRUE(pair.answers[0].ok());
  EXPECT_TRUE(pair.closed.empty());
}

TEST(Sim, ADialToAnIsolatedProcessEndsAtItsDeadline) {
  Pair pair(9);
  pair.world.isolate(pair.process[1]);
  const Time deadline = pair.world.now() + 3s;
  pair.dial(deadline);
  ASSERT_TRUE(pair.run_until([&] { return pair.dialled.size() == 1; }));
  EXPECT_EQ(pair.dialled[0].code(), Code::kUnreachable);
  EXPECT_GE(pair.world.now(), deadline);
  pair.world.rejoin(pair.process[1]);
  pair.dial();
  ASSERT_TRUE(pair.run_until([&] { return pair.dialled.size() == 2; }));
  EXPECT_TRUE(pair.dialled[1].ok());
}

TEST(Sim, ABreakLosesASuffix) {
  int lost = 0, arrived = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Pair pair(seed);
    pair.connect();
    for (uint64_t i = 0; i < 40; ++i) pair.call(i);
    pair.world.at(pair.world.now() + 60us,
                  [&] { pair.world.break_connections(pair.process[0], pair.process[1]); });
    ASSERT_TRUE(pair.run_until([&] { return pair.closed.size() == 1 && pair.recorder.closed.size() == 1; }));
    ASSERT_EQ(pair.answers.size(), 40u) << "every call ends";
    EXPECT_FALSE(pair.recorder.closed[0].ok());
    for (size_t i = 0; i < pair.recorder.order.size(); ++i) {
      EXPECT_EQ(pair.recorder.order[i], "call " + std::to_string(i)) << "what arrives is a prefix";
    }
    arrived += static_cast<int>(pair.recorder.order.size());
    lost += 40 - static_cast<int>(pair.recorder.order.size());
  }
  EXPECT_GT(lost, 0);
  EXPECT_GT(arrived, 0);
}

TEST(Sim, ProgramsBlockWhileTheWorldGoesOn) {
  auto run = [](uint64_t seed) {
    Pair pair(seed);
    pair.connect();
    std::vector<std::string> log;
    for (int k = 0; k < 3; ++k) {
      pair.world.start_program(pair.process[0], [&, k] {
        for (int i = 0; i < 5; ++i) {
          std::atomic<bool> done{false};
          Loop& loop = pair.network[0]->loop();
          loop.post([&] { pair.channel->call(Watch{1}, kNever, [&](Result<Message>) { done = true; }); });
          EXPECT_TRUE(loop.wait(done, loop.now() + 1s));
          log.push_back(std::to_string(k) + std::to_string(i));
          done = false;
          const Time deadline = loop.now() + 3ms;
          EXPECT_FALSE(loop.wait(done, deadline));
          EXPECT_EQ(loop.now(), deadline);
        }
      });
    }
    EXPECT_TRUE(pair.run_until([&] { return pair.world.running_programs() == 0; }));
    EXPECT_EQ(log.size(), 15u);
    return std::pair(log, pair.world.trace_hash());
  };
  EXPECT_EQ(run(11), run(11));
  EXPECT_NE(run(11).second, run(12).second);
}

TEST(Sim, AProgramOfAKilledProcessReturnsWhenItIsBuried) {
  Pair pair(13);
  pair.connect();
  Status answer;
  bool returned = false;
  std::vector<Responder> parked;
  pair.recorder.answer = [&](ServerChannel&, Message, Responder respond) {
    parked.push_back(std::move(respond));
  };
  pair.world.start_program(pair.process[0], [&] {
    Loop& loop = pair.network[0]->loop();
    std::atomic<bool> done{false};
    loop.post([&] {
      pair.channel->call(Watch{1}, loop.now() + 60s, [&](Result<Message> reply) {
        answer = reply.status();
        done = true;
      });
    });
    loop.wait(done, kNever);
    returned = true;
  });
  pair.world.run_for(1ms);
  pair.world.kill(pair.process[0], Death::kReset);
  pair.world.run_for(100s);
  EXPECT_FALSE(returned);
  pair.world.finish_killed(pair.process[0]);
  ASSERT_TRUE(pair.run_until([&] { return returned; }));
  EXPECT_FALSE(answer.ok());
}

}  // namespace
}  // namespace dsgd::transport

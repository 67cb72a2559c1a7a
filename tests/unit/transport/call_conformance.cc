// Calls and their answers.
#include "conformance.h"

namespace dsgd::transport {
namespace {

Status detailed() {
  return Status(Code::kMismatch, "rank 3 disagrees about 'dense.weight'")
      .with_rank(3, "node7")
      .with_operation("step 17")
      .with_parameter("dense.weight");
}

void expect_same(const Status& got, const Status& want) {
  EXPECT_EQ(got.code(), want.code());
  EXPECT_EQ(got.message(), want.message());
  EXPECT_EQ(got.rank(), want.rank());
  EXPECT_EQ(got.host(), want.host());
  EXPECT_EQ(got.operation(), want.operation());
  EXPECT_EQ(got.parameter(), want.parameter());
}

TEST_P(Conformance, ACallIsAnsweredWithAMessage) {
  recorder_.answer = [](ServerChannel&, Message request, Responder respond) {
    WatchReply reply;
    reply.sequence = std::get<Watch>(request).sequence + 1;
    reply.cause = detailed();
    respond(Message(std::move(reply)));
  };
  auto client = dial();
  WatchReply reply;
  bool done = false;
  on(*dialling_, [&] {
    client->channel->call(Watch{41}, kNever, [&](Result<Message> result) {
      ASSERT_TRUE(result.ok()) << result.status().message();
      reply = std::get<WatchReply>(result.value());
      done = true;
    });
  });
  ASSERT_TRUE(client_until([&] { return done; }));
  EXPECT_EQ(reply.sequence, 42u);
  expect_same(reply.cause, detailed());
}

TEST_P(Conformance, AnErrorArrivesWithAllItsFields) {
  recorder_.answer = [](ServerChannel&, Message, Responder respond) { respond(detailed()); };
  auto client = dial();
  expect_same(call(*client, Watch{1}), detailed());
}

TEST_P(Conformance, CallsArriveInTheOrderOfSending) {
  auto client = dial();
  std::vector<uint64_t> answered;
  on(*dialling_, [&] {
    for (uint64_t i = 0; i < 200; ++i) {
      client->channel->call(Watch{i}, kNever, [&, i](Result<Message> reply) {
        EXPECT_TRUE(reply.ok());
        answered.push_back(i);
      });
    }
    EXPECT_TRUE(answered.empty());
  });
  ASSERT_TRUE(client_until([&] { return answered.size() == 200; }));
  on(*serving_, [&] {
    for (uint64_t i = 0; i < 200; ++i) EXPECT_EQ(recorder_.order[i], "call " + std::to_string(i));
  });
}

TEST_P(Conformance, AnswersMayComeInAnyOrderAndLate) {
  std::vector<std::pair<uint64_t, Responder>> parked;
  recorder_.answer = [&](ServerChannel&, Message request, Responder respond) {
    parked.emplace_back(std::get<Watch>(request).sequence, std::move(respond));
  };
  auto client = dial();
  std::vector<uint64_t> answered;
  on(*dialling_, [&] {
    for (uint64_t i = 0; i < 3; ++i) {
      client->channel->call(Watch{i}, kNever, [&, i](Result<Message> reply) {
        ASSERT_TRUE(reply.ok());
        EXPECT_EQ(std::get<WatchReply>(reply.value()).sequence, i) << "an answer belongs to its call";
        answered.push_back(i);
      });
    }
  });
  ASSERT_TRUE(server_until([&] { return parked.size() == 3; }));
  on(*serving_, [&] {
    for (size_t i : {2, 0, 1}) {
      WatchReply reply;
      reply.sequence = parked[i].first;
      parked[i].second(Message(reply));
    }
    parked.clear();
  });
  EXPECT_TRUE(client_until([&] { return answered.size() == 3; }));
  EXPECT_EQ(answered, (std::vector<uint64_t>{2, 0, 1}));
}

TEST_P(Conformance, ADroppedResponderAnswersWithAnError) {
  std::vector<Responder> copies;
  recorder_.answer = [&](ServerChannel&, Message, Responder respond) {
    copies.push_back(respond);
    copies.push_back(std::move(respond));
  };
  auto client = dial();
  Status status;
  bool done = false;
  on(*dialling_, [&] {
    client->channel->call(Watch{1}, kNever, [&](Result<Message> reply) {
      status = reply.status();
      done = true;
    });
  });
  ASSERT_TRUE(server_until([&] { return copies.size() == 2; }));
  on(*serving_, [&] {
    copies.pop_back();
    recorder_.answer = nullptr;
  });
  ping(*client);
  on(*dialling_, [&] { EXPECT_FALSE(done) << "a copy of the responder is left"; });
  on(*serving_, [&] { copies.clear(); });
  ASSERT_TRUE(client_until([&] { return done; }));
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(status.message().empty());
}

TEST_P(Conformance, ACallEndsAtItsDeadlineAndALateAnswerIsHarmless) {
  std::vector<Responder> parked;
  recorder_.answer = [&](ServerChannel&, Message, Responder respond) {
    parked.push_back(std::move(respond));
  };
  auto client = dial();
  Status status;
  int ends = 0;
  Time deadline{};
  on(*dialling_, [&] {
    deadline = dialling_->loop().now() + 30ms;
    client->channel->call(Watch{1}, deadline, [&](Result<Message> reply) {
      EXPECT_GE(dialling_->loop().now(), deadline);
      status = reply.status();
      ++ends;
    });
  });
  ASSERT_TRUE(client_until([&] { return ends == 1; }));
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_NE(status.message().find(listener_->address()), std::string::npos) << status.message();
  ASSERT_TRUE(server_until([&] { return parked.size() == 1; }));
  on(*serving_, [&] {
    parked[0](Message(Empty{}));
    parked.clear();
    recorder_.answer = nullptr;
  });
  ping(*client);
  on(*dialling_, [&] {
    EXPECT_EQ(ends, 1);
    EXPECT_TRUE(client->closed.empty());
  });
}

TEST_P(Conformance, ADeadlineThatHasPassedEndsTheCallFromTheLoop) {
  std::vector<Responder> parked;
  recorder_.answer = [&](ServerChannel&, Message, Responder respond) {
    parked.push_back(std::move(respond));
  };
  auto client = dial();
  Status status;
  bool done = false;
  on(*dialling_, [&] {
    client->channel->call(Watch{1}, dialling_->loop().now() - 1s, [&](Result<Message> reply) {
      status = reply.status();
      done = true;
    });
    EXPECT_FALSE(done);
  });
  ASSERT_TRUE(client_until([&] { return done; }));
  EXPECT_EQ(status.code(), Code::kTimeout);
  drop(client);
  on(*serving_, [&] {
    parked.clear();
    recorder_.answer = nullptr;
  });
}

TEST_P(Conformance, ALargeObjectTravelsInOneCall) {
  std::vector<uint8_t> received;
  recorder_.answer = [&](ServerChannel&, Message request, Responder respond) {
    received = std::get<PutObject>(request).data;
    respond(Message(Empty{}));
  };
  auto client = dial();
  PutObject put;
  put.name = "vocabulary";
  put.total = 1 << 21;
  for (int i = 0; i < (1 << 20) + 3; ++i) put.data.push_back(static_cast<uint8_t>(i * 7 >> 3));
  EXPECT_TRUE(call(*client, put).ok());
  on(*serving_, [&] { EXPECT_EQ(received, put.data); });
}

TEST_P(Conformance, AnAnswerAfterTheCloseIsHarmless) {
  std::vector<Responder> parked;
  recorder_.answer = [&](ServerChannel&, Message, Responder respond) {
    parked.push_back(std::move(respond));
  };
  auto client = dial();
  on(*dialling_, [&] { client->channel->call(Watch{1}, kNever, [](Result<Message>) {}); });
  ASSERT_TRUE(server_until([&] { return parked.size() == 1; }));
  drop(client);
  ASSERT_TRUE(server_until([&] { return recorder_.closed.size() == 1; }));
  on(*serving_, [&] {
    parked[0](Message(Empty{}));
    parked.clear();
  });
}

}  // namespace
}  // namespace dsgd::transport

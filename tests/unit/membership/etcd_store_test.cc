// The election of a head by etcd, with scripted answers and in the time of the test.
#include "core/membership/etcd_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include <nlohmann/json.hpp>

#include "core/base/text.h"
#include "core/membership/head_record.h"
#include "tests/unit/membership/fakes.h"
#include "transport/base/base64.h"

namespace dsgd {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using transport::Duration;
using transport::HeadRecord;
using transport::HttpAnswer;
using transport::HttpRequest;

struct Question {
  HttpRequest request;
  std::function<void(Result<HttpAnswer>)> done;
};

class FakeHttp final : public transport::Http {
 public:
  explicit FakeHttp(std::deque<Question>& questions) : questions_(questions) {}
  void post(HttpRequest request, std::function<void(Result<HttpAnswer>)> done) override {
    questions_.push_back({std::move(request), std::move(done)});
  }

 private:
  std::deque<Question>& questions_;
};

json header(int64_t revision) { return {{"revision", std::to_string(revision)}}; }
json key_value(const std::string& bytes, int64_t created, int64_t lease, int64_t modified) {
  return {{"value", to_base64(bytes)},
          {"create_revision", std::to_string(created)},
          {"mod_revision", std::to_string(modified)},
          {"lease", std::to_string(lease)}};
}
json found(const std::optional<json>& one) {
  return one ? json{{"kvs", json::array({*one})}, {"count", "1"}} : json::object();
}
json key_value(const std::string& bytes, int64_t created, int64_t lease) {
  return key_value(bytes, created, lease, created);
}
json a_leader(int64_t created, int64_t lease = 99) {
  return key_value(json{{"head", "b:7700"}}.dump(), created, lease);
}

class EtcdStoreTest : public testing::Test {
 protected:
  static constexpr int64_t kLease = 7;
  static constexpr Duration kTtl = 10s;

  EtcdStoreTest() { make_store(1); }
  void make_store(size_t servers, const std::string& job = "digits", Duration lease = kTtl) {
    questions_.clear();
    EtcdStore::Options options;
    for (size_t i = 0; i < servers; ++i) options.etcd.servers.push_back("etcd" + std::to_string(i) + ":2379");
    options.etcd.prefix = "jobs";
    options.text = "etcd://etcd0:2379/jobs";
    options.job = job;
    options.lease = lease;
    store_ = std::make_unique<EtcdStore>(
        loop_, std::make_unique<FakeHttp>(questions_), std::move(options),
        std::make_shared<Log>(LogLevel::kWarning,
                              [this](const LogRecord& record) { warnings_.push_back(record.message); }));
  }
  void start() {
    EtcdStore::Events events;
    events.reached = [this](const Status& status) { reached_.push_back(status); };
    events.check = [this](const HeadRecord& record) {
      return record.view == wrong_view_ ? Status(Code::kMismatch, "of another job") : Status();
    };
    events.standing_by = [this](const std::string& head) { stood_by_.push_back(head); };
    events.elected = [this](std::optional<HeadRecord> record) {
      ++elected_;
      record_ = std::move(record);
    };
    events.over = [this](const Status& status) { over_.push_back(status); };
    store_->start("a:7700", std::move(events));
  }

  // Ends the oldest request, which must be of this path; returns its body.
  json answer(const std::string& path, Result<HttpAnswer> result) {
    if (questions_.empty()) {
      ADD_FAILURE() << "no request; expected " << path;
      return {};
    }
    const Question question = std::move(questions_.front());
    questions_.pop_front();
    EXPECT_TRUE(question.request.path == "/v3/" + path) << question.request.path << ", not " << path;
    question.done(std::move(result));
    loop_.advance(0ms);
    return json::parse(question.request.body, nullptr, false);
  }
  json answer(const std::string& path, const json& body) {
    return answer(path, HttpAnswer{200, body.dump()});
  }
  json fail(const std::string& path, Code code = Code::kUnreachable) {
    return answer(path, Status(code, "no route"));
  }
  void answer_look(const std::optional<json>& leader, int64_t revision = 5,
                   const std::optional<json>& record = {}) {
    const json asked = answer_keys(true, leader, record, revision);
    EXPECT_EQ(asked.at("success").at(0)["request_range"]["key"], to_base64("jobs/digits/leader"));
    EXPECT_EQ(asked.at("success").at(1)["request_range"]["key"], to_base64("jobs/digits/record"));
    EXPECT_FALSE(asked.contains("compare"));
  }
  json answer_keys(bool done, const std::optional<json>& leader, const std::optional<json>& record,
                   int64_t revision) {
    json body = {{"header", header(revision)},
                 {"responses", {{{"response_range", found(leader)}}, {{"response_range", found(record)}}}}};
    if (done) body["succeeded"] = true;
    return answer("kv/txn", body);
  }
  void answer_grant(int64_t seconds = 10) {
    EXPECT_EQ(
        answer("lease/grant", {{"ID", std::to_string(kLease)}, {"TTL", std::to_string(seconds)}})["TTL"],
        "10");
  }
  json answer_create(bool done, const std::optional<json>& leader, const std::optional<json>& record = {}) {
    json responses = json::array();
    if (done) responses.push_back({{"response_put", json::object()}});
    responses.push_back({{"response_range", found(leader)}});
    responses.push_back({{"response_range", found(record)}});
    json body = {{"header", header(6)}, {"responses", responses}};
    if (done) body["succeeded"] = true;
    return answer("kv/txn", body);
  }
  json answer_change(int64_t revision = 8) {
    return answer("kv/txn", {{"header", header(revision)}, {"succeeded", true}});
  }
  void answer_renewal(int64_t seconds = 10) {
    json result = {{"ID", std::to_string(kLease)}};
    if (seconds) result["TTL"] = std::to_string(seconds);
    EXPECT_EQ(answer("lease/keepalive", {{"result", result}})["ID"], std::to_string(kLease));
  }
  void serve(const std::optional<json>& record = {}) {
    start();
    answer_look({});
    answer_grant();
    answer_create(true, key_value("", 6, kLease), record);
  }
  static HeadRecord a_record() {
    HeadRecord record;
    record.job = "digits";
    record.num_workers = record.joined = 1;
    record.workers.emplace_back().info.number = 0;
    record.workers.back().info.worker_id = "w0";
    record.view = 3;
    return record;
  }
  static std::string text() { return text_of(write_head_record(a_record())); }
  EtcdStore::Done stored() {
    return [this](const Status& status) { stored_.push_back(status); };
  }

  FakeLoop loop_;
  std::deque<Question> questions_;
  std::unique_ptr<EtcdStore> store_;
  std::vector<Status> reached_, over_, stored_;
  std::vector<std::string> stood_by_, warnings_;
  int elected_ = 0;
  uint64_t wrong_view_ = 0;
  std::optional<HeadRecord> record_;
};

TEST_F(EtcdStoreTest, ServesWhereNoOtherHeadDoes) {
  start();
  answer_look({});
  ASSERT_EQ(reached_.size(), 1u);
  EXPECT_TRUE(reached_[0].ok());
  EXPECT_FALSE(store_->holds());
  answer_grant();
  EXPECT_EQ(elected_, 0);
  const json asked = answer_create(true, key_value("", 6, kLease));
  EXPECT_EQ(asked.at("compare").at(0)["target"], "CREATE");
  EXPECT_EQ(asked.at("compare").at(0)["create_revision"], "0");
  EXPECT_EQ(asked.at("success").at(0)["request_put"]["lease"], std::to_string(kLease));
  EXPECT_EQ(elected_, 1);
  EXPECT_FALSE(record_);
  EXPECT_TRUE(store_->holds());
  EXPECT_TRUE(over_.empty());
}

TEST_F(EtcdStoreTest, TakesUpTheRecordOfTheHeadBefore) {
  serve(key_value(text(), 2, 0));
  ASSERT_TRUE(record_);
  EXPECT_EQ(record_->view, 3u);
  EXPECT_EQ(record_->workers.at(0).info.worker_id, "w0");
}

TEST_F(EtcdStoreTest, ADamagedRecordEndsTheHead) {
  std::string damaged = text();
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  serve(key_value(damaged, 2, 0));
  EXPECT_EQ(elected_, 0);
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), Code::kCorrupted);
  EXPECT_THAT(over_[0].message(),
              AllOf(HasSubstr("etcd://etcd0:2379/jobs"), HasSubstr("'jobs/digits/record'")));
}

TEST_F(EtcdStoreTest, StandsByUntilTheOtherHeadIsGone) {
  start();
  answer_look(a_leader(3), 5);
  EXPECT_EQ(stood_by_, std::vector<std::string>{"b:7700"});
  EXPECT_EQ(
      answer("watch", json{{"result", {{"events", json::array()}}}})["create_request"]["start_revision"],
      "6");
  answer_look(a_leader(3), 7);  // something else has changed
  loop_.advance(kTtl / 4);
  fail("watch", Code::kTimeout);
  answer_look({}, 9);
  answer_grant();
  answer_create(true, key_value("", 10, kLease));
  EXPECT_EQ(elected_, 1);
  EXPECT_EQ(stood_by_.size(), 1u) << "once for each head";
}

// As a proxy may do that does not pass on the rest of a stream.
TEST_F(EtcdStoreTest, AWatchThatEndsAtOnceIsNotAskedAllTheTime) {
  start();
  answer_look(a_leader(3), 5);
  for (int i = 0; i < 3; ++i) {
    answer("watch", json{{"result", {{"events", json::array()}}}});
    answer_look(a_leader(3), 5);
    EXPECT_TRUE(questions_.empty());
    loop_.advance(kTtl / 4);
  }
  answer("watch", json{{"result", {{"events", json::array()}}}});
  answer_look({}, 9);
  answer_grant();
}

TEST_F(EtcdStoreTest, AHeadThatLosesTheElectionStandsBy) {
  start();
  answer_look({});
  answer_grant();
  answer_create(false, a_leader(6));
  EXPECT_EQ(elected_, 0);
  EXPECT_EQ(stood_by_.size(), 1u);
  EXPECT_EQ(answer("lease/revoke", json::object())["ID"], std::to_string(kLease));
  fail("watch", Code::kTimeout);
  answer_look({});
}

TEST_F(EtcdStoreTest, EndsWithTheJobForWhichItStandsBy) {
  for (const bool another_job : {false, true}) {
    SCOPED_TRACE(another_job);
    make_store(1);
    over_.clear();
    start();
    answer_look(a_leader(3));
    fail("watch", Code::kTimeout);
    answer_look(a_leader(3), 7, key_value(text(), 7, 0));
    fail("watch", Code::kTimeout);
    EXPECT_TRUE(over_.empty());
    answer_look(another_job ? std::optional(a_leader(9)) : std::nullopt, 9);
    ASSERT_EQ(over_.size(), 1u);
    EXPECT_TRUE(over_[0].ok());
    EXPECT_TRUE(questions_.empty());
  }
}

TEST_F(EtcdStoreTest, EndsAsSoonAsItSeesThatTheKeysAreOfAnotherJob) {
  wrong_view_ = a_record().view;
  start();
  answer_look(a_leader(3));
  fail("watch", Code::kTimeout);
  EXPECT_TRUE(over_.empty());
  answer_look(a_leader(3), 7, key_value(text(), 7, 0));
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), Code::kMismatch);
}

TEST_F(EtcdStoreTest, DoesNotServeAnotherJob) {
  wrong_view_ = a_record().view;
  serve(key_value(text(), 2, 0));
  EXPECT_EQ(elected_, 0);
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), Code::kMismatch);
}

TEST_F(EtcdStoreTest, WatchesTheRecordToSeeThatTheJobHasBegun) {
  start();
  answer_look(a_leader(3));
  const json asked = answer("watch", json{{"result", {{"events", json::array()}}}})["create_request"];
  EXPECT_EQ(asked["key"], to_base64("jobs/digits/"));
  EXPECT_EQ(asked["range_end"], to_base64("jobs/digits0"));
}

TEST_F(EtcdStoreTest, GoesOnWithAJobThatHasNotBegun) {
  start();
  answer_look(a_leader(3));
  fail("watch", Code::kTimeout);
  answer_look({});
  answer_grant();
  answer_create(true, key_value("", 6, kLease));
  EXPECT_EQ(elected_, 1);
}

TEST_F(EtcdStoreTest, ALostAnswerOfTheElectionIsNoLostElection) {
  start();
  answer_look({});
  answer_grant();
  fail("kv/txn", Code::kTimeout);
  loop_.advance(kTtl / 4);
  answer_create(false, a_leader(6, kLease));
  EXPECT_EQ(elected_, 1);
}

TEST_F(EtcdStoreTest, AnElectionThatTakesALeaseIsLost) {
  start();
  answer_look({});
  answer_grant();
  loop_.stop_for(kTtl);
  answer_create(true, key_value("", 6, kLease));
  EXPECT_EQ(elected_, 0);
  EXPECT_EQ(answer("lease/revoke", json::object())["ID"], std::to_string(kLease));
  answer_look({});
}

TEST_F(EtcdStoreTest, AHeadThatCannotRenewEndsWithItsLeaseAndNotBefore) {
  start();
  answer_look({});
  const auto granted = loop_.now();
  loop_.stop_for(2s);  // the answer takes as long
  answer_grant();
  answer_create(true, key_value("", 6, kLease));
  store_->store(a_record(), stored());
  while (loop_.now() < granted + kTtl) {
    EXPECT_TRUE(over_.empty()) << "after " << (loop_.now() - granted).count();
    EXPECT_TRUE(store_->holds());
    while (!questions_.empty())
      fail(questions_.front().request.path.ends_with("txn") ? "kv/txn" : "lease/keepalive");
    loop_.advance(1ms);
  }
  EXPECT_FALSE(store_->holds());
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), Code::kWorkerLost);
  EXPECT_THAT(over_[0].message(), AllOf(HasSubstr("lease in etcd"), HasSubstr("no route")));
  questions_.clear();
  loop_.advance(kTtl);
  EXPECT_TRUE(questions_.empty()) << "it asks nothing more";
  EXPECT_TRUE(stored_.empty()) << "the head must not go on as if its record were kept, nor end the job";
}

TEST_F(EtcdStoreTest, RenewsItsLeaseFromTheSendingOfTheRequest) {
  serve();
  for (int i = 0; i < 20; ++i) {
    answer_renewal();
    EXPECT_TRUE(over_.empty());
    EXPECT_TRUE(questions_.empty()) << "not at once again";
    loop_.advance(kTtl / 4);
    ASSERT_FALSE(questions_.empty());
  }
  loop_.advance(kTtl * 3 / 4 - 1ms);
  EXPECT_TRUE(over_.empty());
  loop_.advance(1ms);
  EXPECT_EQ(over_.size(), 1u) << "the last renewal was sent a lease ago less what has passed since";
}

TEST_F(EtcdStoreTest, ALeaseThatEtcdHasEndedEndsTheHead) {
  serve();
  answer_renewal(0);
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), Code::kWorkerLost);
}

TEST_F(EtcdStoreTest, StoresOnlyWhileTheJobIsItsOwn) {
  serve();
  answer_renewal();
  store_->store(a_record(), stored());
  const json asked = answer_change();
  EXPECT_EQ(asked.at("compare").at(0)["key"], to_base64("jobs/digits/leader"));
  EXPECT_EQ(asked.at("compare").at(0)["create_revision"], "6");
  EXPECT_EQ(asked.at("success").at(0)["request_put"]["value"], to_base64(text()));
  ASSERT_EQ(stored_.size(), 1u);
  EXPECT_TRUE(stored_[0].ok());
  EXPECT_EQ(asked.at("compare").at(1)["key"], to_base64("jobs/digits/record"));
  EXPECT_EQ(asked.at("compare").at(1)["mod_revision"], "0");
  store_->store(a_record(), stored());
  answer_keys(false, a_leader(9), key_value(text(), 8, 0), 9);
  EXPECT_EQ(stored_.size(), 1u) << "not told";
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), Code::kWorkerLost);
  store_->store(a_record(), stored());
  EXPECT_TRUE(questions_.empty());
}

// Otherwise a request that etcd executes late, after newer ones, would bring an old view back.
TEST_F(EtcdStoreTest, StoresOnlyOverTheRecordThatItKnows) {
  serve(key_value(text(), 2, 0, 4));
  answer_renewal();
  for (const int64_t known : {4, 8, 9}) {
    store_->store(a_record(), stored());
    const json asked = answer_change(known == 4 ? 8 : 9);
    EXPECT_EQ(asked.at("compare").at(1)["target"], "MOD");
    EXPECT_EQ(asked.at("compare").at(1)["mod_revision"], std::to_string(known));
  }
  EXPECT_EQ(stored_.size(), 3u);
}

TEST_F(EtcdStoreTest, AStoreWhoseAnswerWasLostIsDone) {
  serve();
  answer_renewal();
  store_->store(a_record(), stored());
  fail("kv/txn", Code::kTimeout);
  loop_.advance(kTtl / 5);
  answer_keys(false, key_value("", 6, kLease), key_value(text(), 8, 0), 8);
  ASSERT_EQ(stored_.size(), 1u);
  EXPECT_TRUE(stored_[0].ok());
  store_->store(a_record(), stored());
  EXPECT_EQ(answer_change(9).at("compare").at(1)["mod_revision"], "8");
}

TEST_F(EtcdStoreTest, StoresOverARecordThatCameLate) {
  serve();
  answer_renewal();
  store_->store(a_record(), stored());
  answer_keys(false, key_value("", 6, kLease), key_value("of an earlier request", 8, 0), 8);
  EXPECT_TRUE(stored_.empty());
  EXPECT_EQ(answer_change(9).at("compare").at(1)["mod_revision"], "8");
  EXPECT_EQ(stored_.size(), 1u);
}

TEST_F(EtcdStoreTest, StoresAgainAfterAFailure) {
  serve();
  answer_renewal();
  store_->store(a_record(), stored());
  const json first = fail("kv/txn", Code::kTimeout);
  EXPECT_TRUE(stored_.empty());
  loop_.advance(kTtl / 5);
  EXPECT_EQ(answer_change(), first);
  ASSERT_EQ(stored_.size(), 1u);
  EXPECT_TRUE(stored_[0].ok());
}

TEST_F(EtcdStoreTest, ARecordThatEtcdRefusesIsAnError) {
  serve();
  answer_renewal();
  for (const char* answered : {R"({"error":"request is too large","code":3})",
                               R"({"message":"request is too large","code":3,"details":[]})"}) {
    stored_.clear();
    store_->store(a_record(), stored());
    answer("kv/txn", HttpAnswer{400, answered});
    ASSERT_EQ(stored_.size(), 1u);
    EXPECT_EQ(stored_[0].code(), Code::kState);
    EXPECT_THAT(stored_[0].message(), HasSubstr("says: request is too large"));
  }
}

TEST_F(EtcdStoreTest, TheEndRemovesItsKeys) {
  serve();
  answer_renewal();
  store_->remove(stored());
  const json asked = answer_change();
  EXPECT_EQ(asked.at("success").at(0)["request_delete_range"]["key"], to_base64("jobs/digits/record"));
  EXPECT_EQ(asked.at("success").at(1)["request_delete_range"]["key"], to_base64("jobs/digits/leader"));
  EXPECT_EQ(answer("lease/revoke", json::object())["ID"], std::to_string(kLease));
  EXPECT_EQ(stored_.size(), 1u);
  loop_.advance(2 * kTtl);
  EXPECT_TRUE(questions_.empty()) << "the lease is not renewed";
  EXPECT_TRUE(over_.empty());
}

TEST_F(EtcdStoreTest, AnEndWhoseAnswerWasLostIsDone) {
  serve();
  answer_renewal();
  store_->remove(stored());
  fail("kv/txn", Code::kTimeout);
  loop_.advance(kTtl / 5);
  answer_keys(false, {}, {}, 9);
  ASSERT_EQ(stored_.size(), 1u);
  EXPECT_TRUE(stored_[0].ok());
  EXPECT_TRUE(over_.empty());
}

TEST_F(EtcdStoreTest, AShorterLeaseIsRenewedMoreOften) {
  start();
  answer_look({});
  answer_grant(4);
  answer_create(true, key_value("", 6, kLease));
  for (int i = 0; i < 8; ++i) {
    answer_renewal(4);
    EXPECT_TRUE(questions_.empty());
    loop_.advance(1s);
    ASSERT_FALSE(questions_.empty());
  }
}

TEST_F(EtcdStoreTest, AsksEachServerBeforeTheStartFails) {
  make_store(3);
  start();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(reached_.empty());
    ASSERT_FALSE(questions_.empty());
    EXPECT_THAT(questions_.front().request.server, HasSubstr("etcd" + std::to_string(i)));
    fail("kv/txn");
  }
  ASSERT_EQ(reached_.size(), 1u);
  EXPECT_EQ(reached_[0].code(), Code::kUnreachable);
  loop_.advance(kTtl);
  EXPECT_TRUE(questions_.empty());
}

TEST_F(EtcdStoreTest, ARequestMayTakeAQuarterOfTheLeaseAndAtMostFiveSeconds) {
  for (const auto& [lease, longest] : {std::pair<Duration, Duration>{2s, 500ms}, {10s, 2500ms}, {1h, 5s}}) {
    make_store(1, "digits", lease);
    start();
    ASSERT_EQ(questions_.size(), 1u);
    EXPECT_TRUE(questions_.front().request.timeout == longest) << longest.count();
  }
}

TEST_F(EtcdStoreTest, AHeadThatStandsByAsksAgainAfterFailures) {
  start();
  answer_look(a_leader(3));
  fail("watch");
  for (int i = 0; i < 5; ++i) {
    loop_.advance(kTtl / 4);
    fail("kv/txn");
  }
  loop_.advance(kTtl / 4);
  answer_look({});
  answer_grant();
  EXPECT_TRUE(over_.empty());
}

// The answer to a look that has found this.
std::string found_of(const std::string& keys) {
  return R"({"header":{"revision":"5"},"succeeded":true,"responses":[{"response_range":{"kvs":)" + keys +
         R"(}},{"response_range":{}}]})";
}

// Another program listens at the address, or a proxy.
TEST_F(EtcdStoreTest, AnswersThatAreNotEtcdsAreRefused) {
  const std::vector<HttpAnswer> wrong = {
      {200, ""},
      {200, "<html>"},
      {200, "null"},
      {200, "[]"},
      {200, "{}"},
      {200, R"({"header":{}})"},
      {200, R"({"header":{"revision":"5"}})"},
      {200, R"({"header":{"revision":"x"}})"},
      {200, R"({"header":{"revision":"-5"}})"},
      {200, R"({"header":{"revision":"99999999999999999999"}})"},
      {200, found_of("7")},
      {200, found_of("[7]")},
      {200, found_of(R"([{"value":"AA=","create_revision":"3","mod_revision":"3"}])")},
      {200, found_of(R"([{"value":3,"create_revision":"3","mod_revision":"3"}])")},
      {200, found_of(R"([{"value":"AAAA"}])")},
      {200, found_of(R"([{"value":"AAAA","create_revision":"3","mod_revision":"2"}])")},
      {200, found_of(R"([{"value":"AAAA","create_revision":"3","mod_revision":"3","lease":[]}])")},
      {200, std::string(4 << 20, '[')},
      {404, "404 page not found\n"},
      {500, R"({"error":7,"code":"x"})"},
  };
  for (const HttpAnswer& one : wrong) {
    make_store(1);
    reached_.clear();
    start();
    answer("kv/txn", one);
    ASSERT_EQ(reached_.size(), 1u);
    EXPECT_EQ(reached_[0].code(), Code::kMismatch) << one.body;
  }
}

TEST_F(EtcdStoreTest, JobsWithSlashesInTheirNamesHaveKeysOfTheirOwn) {
  start();
  answer_look({});
  answer_grant();
  EXPECT_EQ(answer_create(true, key_value("", 6, kLease)).at("success").at(0)["request_put"]["key"],
            to_base64("jobs/digits/leader"));
  make_store(1, "a/b%");
  start();
  EXPECT_EQ(answer_keys(true, {}, {}, 5).at("success").at(0)["request_range"]["key"],
            to_base64("jobs/a%2Fb%25/leader"));
}

TEST_F(EtcdStoreTest, WarnsOfAKeyThatNoHeadHasMade) {
  start();
  answer_look(a_leader(3, 0));
  fail("watch", Code::kTimeout);
  answer_look(a_leader(3, 0));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("'jobs/digits/leader'"))) << "once";
}

TEST_F(EtcdStoreTest, AServerThatIsNotEtcdIsLeftForTheNextOne) {
  make_store(2);
  start();
  answer("kv/txn", HttpAnswer{200, "<html>"});
  EXPECT_TRUE(reached_.empty());
  ASSERT_FALSE(questions_.empty());
  EXPECT_EQ(questions_.front().request.server, "etcd1:2379");
  answer_look({});
  ASSERT_EQ(reached_.size(), 1u);
  EXPECT_TRUE(reached_[0].ok());
}

TEST_F(EtcdStoreTest, AServerThatRefusesTheCertificateIsLeftForTheNextOne) {
  make_store(2);
  start();
  fail("kv/txn", Code::kUnauthorized);
  EXPECT_TRUE(reached_.empty());
  ASSERT_FALSE(questions_.empty());
  EXPECT_EQ(questions_.front().request.server, "etcd1:2379");
  fail("kv/txn", Code::kUnauthorized);
  ASSERT_EQ(reached_.size(), 1u);
  EXPECT_EQ(reached_[0].code(), Code::kUnauthorized);
}

TEST_F(EtcdStoreTest, AHeadThatServesLeavesAServerThatIsNotEtcd) {
  make_store(2);
  serve();
  const std::string first = questions_.front().request.server;
  answer("lease/keepalive", HttpAnswer{200, "<html>"});
  loop_.advance(kTtl / 4);
  ASSERT_FALSE(questions_.empty());
  EXPECT_NE(questions_.front().request.server, first);
}

TEST_F(EtcdStoreTest, AFullOrOverloadedServerIsAskedAgain) {
  serve();
  store_->store(a_record(), stored());
  const HttpAnswer full{429, R"({"error":"etcdserver: mvcc: database space exceeded","code":8})"};
  for (int attempts = 0; attempts < 4 && over_.empty(); loop_.advance(1ms)) {
    if (questions_.empty()) continue;
    if (questions_.front().request.path.ends_with("keepalive")) {
      answer_renewal();
    } else {
      EXPECT_TRUE(stored_.empty());
      ++attempts < 4 ? answer("kv/txn", full) : answer_change();
    }
  }
  ASSERT_EQ(stored_.size(), 1u);
  EXPECT_TRUE(stored_[0].ok());
}

TEST_F(EtcdStoreTest, TheErrorOfAStreamIsRead) {
  serve();
  for (Duration waited{}; waited < 2 * kTtl && over_.empty(); waited += kTtl / 6) {
    if (!questions_.empty()) {
      answer(
          "lease/keepalive",
          HttpAnswer{503, R"({"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}})"});
    }
    loop_.advance(kTtl / 6);
  }
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_THAT(over_[0].message(), HasSubstr("says: etcdserver: no leader"));
}

TEST_F(EtcdStoreTest, WrongAnswersToTheElectionAreAskedAgain) {
  start();
  answer_look({});
  answer("lease/grant", json{{"ID", "7"}});
  loop_.advance(kTtl / 4);
  answer_look({});
  answer_grant();
  for (const char* wrong :
       {"{}", R"({"header":{"revision":"6"},"succeeded":true})",
        R"({"header":{"revision":"6"},"succeeded":"yes"})", R"({"header":{"revision":"6"},"responses":{}})",
        R"({"header":{"revision":"6"},"responses":[{"response_range":{}},{"response_range":[]}]})"}) {
    answer("kv/txn", HttpAnswer{200, wrong});
    EXPECT_EQ(elected_, 0) << wrong;
    loop_.advance(kTtl / 6);
  }
  answer_create(true, key_value("", 6, kLease));
  EXPECT_EQ(elected_, 1);
}

}  // namespace
}  // namespace dsgd

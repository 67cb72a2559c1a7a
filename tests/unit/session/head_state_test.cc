// The key head_state: which files a head takes, and which processes take the key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/membership/head_file.h"
#include "core/session/head_process.h"
#include "core/session/session.h"
#include "tests/unit/certificates.h"
#include "tests/unit/membership/etcd_server.h"
#include "transport/authentication.h"
#include "transport/uv/environment.h"

namespace dsgd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class HeadStateTest : public testing::Test {
 protected:
  // Each test has a folder of its own: a head removes its file on another thread, perhaps after its test.
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "dsgd-head-state-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string path() const { return folder_ / "head"; }
  Result<std::unique_ptr<HeadProcess>> start(const std::map<std::string, std::string>& more = {}) {
    Config config;
    std::map<std::string, std::string> values = {
        {"head", "127.0.0.1:0"}, {"num_workers", "2"}, {"head_state", path()}};
    for (const auto& [key, value] : more) values[key] = value;
    for (const auto& [key, value] : values) EXPECT_TRUE(config.set(key, value).ok()) << key;
    return HeadProcess::start(config, transport::make_uv_environment(),
                              std::make_shared<Log>(LogLevel::kWarning, [this](const LogRecord& record) {
                                warnings_ += record.message + "\n";
                              }));
  }
  static Result<std::shared_ptr<Session>> join(const std::string& head,
                                               const std::map<std::string, std::string>& more = {}) {
    Config config;
    std::map<std::string, std::string> values = {
        {"head", head}, {"num_workers", "1"}, {"embed_head", "never"}, {"init_timeout", "20s"}};
    values.insert(more.begin(), more.end());
    for (const auto& [key, value] : values) EXPECT_TRUE(config.set(key, value).ok()) << key;
    return Session::open(config, transport::make_uv_environment(), std::make_shared<Log>());
  }
  static transport::HeadRecord record() {
    transport::HeadRecord record;
    record.job = "default";
    record.lease = std::chrono::seconds(10);
    record.num_workers = record.min_workers = record.max_workers = 2;
    record.job_nonce = "nonce";
    record.token_digest = transport::token_digest("", record.job_nonce);
    record.view = 1;
    record.joined = 2;
    for (int32_t i = 0; i < 2; ++i) {
      record.workers.emplace_back().info.number = i;
      record.workers.back().info.worker_id = std::string("w") + static_cast<char>('0' + i);
    }
    return record;
  }
  void write(const transport::HeadRecord& record) {
    const std::vector<std::byte> bytes = write_head_record(record);
    std::ofstream(path()).write(reinterpret_cast<const char*>(bytes.data()),
                                static_cast<std::streamsize>(bytes.size()));
  }

  std::filesystem::path folder_;
  std::string warnings_;  // of heads
};

TEST_F(HeadStateTest, AHeadTakesThePortOfTheOneBefore) {
  std::string address;
  {
    auto first = start();
    ASSERT_TRUE(first.ok()) << first.status().message();
    address = first.value()->address();
  }
  transport::HeadRecord earlier = record();
  earlier.address = address;
  write(earlier);
  auto second = start();
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(second.value()->address(), address);
}

TEST_F(HeadStateTest, TwoHeadsCannotHaveOneFile) {
  auto first = start();
  ASSERT_TRUE(first.ok());
  const Status second = start().status();
  EXPECT_EQ(second.code(), Code::kExists);
  EXPECT_EQ(second.parameter(), "head_state");
  first.value().reset();
  EXPECT_TRUE(start().ok());
}

TEST_F(HeadStateTest, TwoHeadsCannotHaveOneFileThroughALink) {
  std::filesystem::create_directory(folder_ / "real");
  std::filesystem::create_directory_symlink("real", folder_ / "other");
  std::filesystem::create_symlink("../link", folder_ / "real" / "second");
  std::filesystem::create_symlink("real/head", folder_ / "link");  // the file is not there yet
  for (const char* name : {"link", "real/head", "other/head", "real/second", "other/second"}) {
    auto first = start({{"head_state", folder_ / name}});
    ASSERT_TRUE(first.ok()) << name << ": " << first.status().message();
    for (const char* again : {"link", "real/head", "other/head", "real/second"})
      EXPECT_EQ(start({{"head_state", folder_ / again}}).status().code(), Code::kExists) << name << again;
  }
  std::filesystem::create_symlink("circle", folder_ / "circle");
  const Status refused = start({{"head_state", folder_ / "circle"}}).status();
  EXPECT_EQ(refused.code(), Code::kIo);
  EXPECT_THAT(refused.message(), HasSubstr("circle"));
}

// The record holds the job's nonce, which makes a process one of the job.
TEST_F(HeadStateTest, TheFileIsItsUsersAloneAndNotPutInThePlaceOfALink) {
  using std::filesystem::perms;
  const auto mode = [](const std::filesystem::path& path) {
    return std::filesystem::status(path).permissions();
  };
  const mode_t before = umask(022);
  std::filesystem::create_symlink("head", folder_ / "link");
  std::ofstream(folder_ / "head.new") << "of a head that was killed";
  auto head = start({{"head_state", folder_ / "link"}, {"num_workers", "1"}});
  ASSERT_TRUE(head.ok()) << head.status().message();
  auto worker = join(head.value()->address());
  ASSERT_TRUE(worker.ok()) << worker.status().message();
  EXPECT_EQ(mode(path()), perms::owner_read | perms::owner_write);
  EXPECT_EQ(mode(path() + ".lock"), perms::owner_read | perms::owner_write);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link"));
  umask(before);
}

TEST_F(HeadStateTest, ARelativePathIsThatOfTheStartWhereverTheHostGoes) {
  const auto before = std::filesystem::current_path();
  std::filesystem::create_directory(folder_ / "elsewhere");
  std::filesystem::current_path(folder_);
  auto head = start({{"head_state", "head"}, {"num_workers", "1"}});
  std::filesystem::current_path(folder_ / "elsewhere");
  ASSERT_TRUE(head.ok()) << head.status().message();
  auto worker = join(head.value()->address());
  EXPECT_TRUE(worker.ok()) << worker.status().message();
  EXPECT_TRUE(std::filesystem::exists(path()));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "elsewhere"));
  std::filesystem::current_path(before);
}

TEST_F(HeadStateTest, AJobWithOtherSettingsIsRefused) {
  transport::HeadRecord earlier = record();
  write(earlier);
  const auto expect_refused = [&](const std::string& key, const std::map<std::string, std::string>& keys) {
    const Status refused = start(keys).status();
    EXPECT_EQ(refused.code(), Code::kMismatch) << key;
    EXPECT_EQ(refused.parameter(), key);
    EXPECT_THAT(refused.message(), AllOf(HasSubstr(path()), HasSubstr("remove the file to begin a new job")));
  };
  for (const auto& [key, value] : std::map<std::string, std::string>{{"job", "other"},
                                                                     {"num_workers", "3"},
                                                                     {"min_workers", "1"},
                                                                     {"max_workers", "4"},
                                                                     {"rejoin_timeout", "30s"},
                                                                     {"lease", "10001ms"}}) {
    expect_refused(key, {{key, value}});
  }
  earlier.min_workers = 1;
  write(earlier);
  expect_refused("straggler_timeout", {{"min_workers", "1"}, {"straggler_timeout", "20s"}});
  EXPECT_TRUE(std::filesystem::exists(path()));
}

// Its workers would be refused, and taken for lost.
TEST_F(HeadStateTest, AnotherTokenIsRefusedAndNotTold) {
  transport::HeadRecord earlier = record();
  earlier.token_digest = transport::token_digest("the token of the job", earlier.job_nonce);
  write(earlier);
  for (const char* token : {"", "a wrong token"}) {
    const Status refused = start({{"token", token}}).status();
    EXPECT_EQ(refused.code(), Code::kMismatch) << token;
    EXPECT_EQ(refused.parameter(), "token");
    EXPECT_THAT(refused.message(), AllOf(HasSubstr("of a job with another `token`"), HasSubstr(path()),
                                         HasSubstr("start the head with the same token"),
                                         Not(HasSubstr("wrong")), Not(HasSubstr("the token of"))));
  }
  EXPECT_TRUE(std::filesystem::exists(path()));
  const auto right = start({{"token", "the token of the job"}});
  EXPECT_TRUE(right.ok()) << right.status().message();
}

TEST_F(HeadStateTest, AnotherAddressIsRefusedIfItsPortDiffers) {
  transport::HeadRecord earlier = record();
  for (const auto& [before, now] : std::map<std::string, std::string>{{"127.0.0.1:7", "127.0.0.1:17"},
                                                                      {"unix:/run/head:1", "127.0.0.1:0"},
                                                                      {"127.0.0.1:8", "unix:/run/h"}}) {
    earlier.address = before;
    write(earlier);
    const Status refused = start({{"head", now}}).status();
    EXPECT_EQ(refused.code(), Code::kMismatch) << now;
    EXPECT_EQ(refused.parameter(), "head");
    EXPECT_THAT(refused.message(), AllOf(HasSubstr(path()), HasSubstr("a head at " + before + ","),
                                         HasSubstr("has the address " + now + ";"),
                                         HasSubstr("start the head there, or remove the file")));
  }
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(HeadStateTest, AnotherHostIsAWarning) {
  transport::HeadRecord earlier = record();
  earlier.address = start().value()->address();
  write(earlier);
  ASSERT_TRUE(start().ok());
  EXPECT_THAT(warnings_, Not(HasSubstr("the earlier head listened on")));
  const std::string other = "127.0.0.2" + earlier.address.substr(earlier.address.find(':'));
  const auto head = start({{"head", other}});
  ASSERT_TRUE(head.ok()) << head.status().message();
  EXPECT_THAT(warnings_, HasSubstr("the earlier head listened on " + earlier.address +
                                   ", this one listens on " + other));
}

TEST_F(HeadStateTest, ADamagedFileIsRefused) {
  std::ofstream(path()) << "something else";
  EXPECT_EQ(start().status().code(), Code::kCorrupted);
}

TEST_F(HeadStateTest, AFolderThatIsNotThereIsAnError) {
  const Status refused = start({{"head_state", folder_ / "none" / "head"}}).status();
  EXPECT_EQ(refused.code(), Code::kNotFound);
  EXPECT_EQ(refused.parameter(), "head_state");
  EXPECT_THAT(refused.message(), HasSubstr("none/head"));
}

TEST_F(HeadStateTest, AnInvalidPlaceInEtcdIsAnError) {
  const Status refused = start({{"head_state", "etcd://a,b:1/jobs"}}).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.parameter(), "head_state");
}

TEST_F(HeadStateTest, AHeadOnAllInterfacesIsNamedByItsHostToTheOneThatStandsBy) {
  dsgd_test::EtcdServer etcd;
  ASSERT_TRUE(etcd.runs());
  Config config;
  for (const auto& [key, value] :
       std::map<std::string, std::string>{{"head", "0.0.0.0:0"},
                                          {"num_workers", "2"},
                                          {"token", "secret"},
                                          {"head_state", "etcd://" + etcd.address() + "/jobs"}})
    ASSERT_TRUE(config.set(key, value).ok()) << key;
  std::promise<std::string> said;
  const auto log = std::make_shared<Log>(LogLevel::kInfo, [&said](const LogRecord& record) {
    if (record.message.find("stands by for") != std::string::npos) said.set_value(record.message);
  });
  std::vector<std::unique_ptr<HeadProcess>> heads;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (heads.size() < 2 && std::chrono::steady_clock::now() < limit) {  // etcd takes time to start
    auto head = HeadProcess::start(config, transport::make_uv_environment(), log);
    if (head.ok()) heads.push_back(std::move(head).value());
  }
  ASSERT_EQ(heads.size(), 2u);
  auto message = said.get_future();
  ASSERT_EQ(message.wait_until(limit), std::future_status::ready);
  const std::string host = transport::make_uv_environment()->host_name();
  EXPECT_THAT(message.get(), HasSubstr("stands by for the head at " + host + ":"));
}

std::map<std::string, std::string> tls_keys(const transport::TlsFiles& files) {
  return {{"tls_cert", files.cert}, {"tls_key", files.key}, {"tls_ca", files.ca}};
}

TEST_F(HeadStateTest, EtcdByTlsTakesCertificatesOfBothSides) {
  TestAuthority ca, other;
  const transport::TlsFiles good = ca.issue("head");
  dsgd_test::EtcdServer etcd(ca.issue("etcd", 3600, "IP:127.0.0.1"));
  ASSERT_TRUE(etcd.runs());
  const auto start_at = [&](const std::string& state, const transport::TlsFiles& files) {
    auto keys = tls_keys(files);
    keys.insert({{"head_state", state}, {"num_workers", "1"}});
    return start(keys);
  };
  const std::string place = "etcds://" + etcd.address() + "/jobs";
  auto head = start_at(place, good);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!head.ok() && std::chrono::steady_clock::now() < limit) head = start_at(place, good);
  ASSERT_TRUE(head.ok()) << head.status().message();
  const auto worker = join(head.value()->address(), tls_keys(good));
  EXPECT_TRUE(worker.ok()) << worker.status().message();

  transport::TlsFiles foreign = other.issue("head"), distrusting = good;
  foreign.ca = good.ca;
  distrusting.ca = other.path("ca.pem");
  struct Case {
    std::string state;
    transport::TlsFiles files;
    std::string text;
  };
  const std::string port = etcd.address().substr(etcd.address().rfind(':'));
  for (const Case& c :
       {Case{place, foreign, "check that it uses TLS, that it trusts the CA that has signed `tls_cert`"},
        {place, distrusting, "unable to get local issuer certificate; check that a CA of `tls_ca`"},
        {"etcds://localhost" + port, good, "that it is for this host"}}) {
    const Status refused = start_at(c.state, c.files).status();
    EXPECT_EQ(refused.code(), Code::kUnauthorized);
    EXPECT_EQ(refused.parameter(), "head_state");
    EXPECT_THAT(refused.message(), AllOf(HasSubstr("'" + c.state + "'"), HasSubstr(c.text)));
  }
  const Status plain = start_at("etcd://" + etcd.address(), good).status();
  EXPECT_THAT(plain.message(), HasSubstr("by plain HTTP (etcds:// uses TLS)"));
}

TEST_F(HeadStateTest, AJobWithTlsWarnsOfEtcdInPlainText) {
  TestAuthority ca;
  auto keys = tls_keys(ca.issue("head"));
  keys["lease"] = "2s";
  keys["head_state"] = "etcd://127.0.0.1:1/jobs";
  EXPECT_FALSE(start(keys).ok());
  EXPECT_EQ(warnings_, "");
  keys["head_state"] = "etcd://127.0.0.1:1,no-such-host.invalid:1/jobs";
  EXPECT_FALSE(start(keys).ok());
  EXPECT_THAT(warnings_, AllOf(HasSubstr("`head_state` = '" + keys["head_state"] + "'"),
                               HasSubstr("in plain text; use etcds://")));
}

TEST_F(HeadStateTest, AServerThatIsNotThereIsAnError) {
  const Status refused = start({{"head_state", "etcd://127.0.0.1:1/jobs"}}).status();
  EXPECT_EQ(refused.code(), Code::kUnreachable);
  EXPECT_THAT(refused.message(), HasSubstr("a request to etcd at 127.0.0.1:1 failed"));
}

TEST_F(HeadStateTest, AHeadListensOnOneAddress) {
  const Status refused = start({{"head", "127.0.0.1:0,127.0.0.1:0"}}).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.parameter(), "head");
}

TEST_F(HeadStateTest, AWorkerThatWouldHostTheHeadRefusesTheKey) {
  Config config;
  for (const auto& [key, value] : std::map<std::string, std::string>{
           {"head", "127.0.0.1:0"}, {"num_workers", "2"}, {"head_state", path()}})
    ASSERT_TRUE(config.set(key, value).ok());
  const Status refused =
      Session::open(config, transport::make_uv_environment(), std::make_shared<Log>()).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.parameter(), "head_state");
  EXPECT_THAT(refused.message(), HasSubstr("start the head with `dsgd head`"));
}

// Nothing of the job comes back, so the head ends it, and removes its record.
TEST_F(HeadStateTest, ALostJobEndsAndLeavesNoFile) {
  transport::HeadRecord earlier = record();
  earlier.lease = std::chrono::milliseconds(500);
  write(earlier);
  auto head = start({{"lease", "500ms"}, {"head_timeout", "500ms"}});
  ASSERT_TRUE(head.ok()) << head.status().message();
  EXPECT_EQ(head.value()->wait(std::chrono::seconds(20)).code(), Code::kWorkerLost);
  EXPECT_FALSE(std::filesystem::exists(path()));
}

}  // namespace
}  // namespace dsgd

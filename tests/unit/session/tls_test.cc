// Jobs whose connections are TLS, through the C ABI: heads, workers, heartbeats and peers.
#include <gmock/gmock.h>

#include <vector>

#include "job.h"
#include "tests/unit/certificates.h"

namespace dsgd_test::tls_test {
namespace {

using testing::HasSubstr;

Settings tls_settings(const dsgd::transport::TlsFiles& files, Settings settings = {}) {
  settings["tls_cert"] = files.cert;
  settings["tls_key"] = files.key;
  settings["tls_ca"] = files.ca;
  return settings;
}

void expect_sum(dsgd_session* session, int workers, size_t count) {
  std::vector<float> values(count, static_cast<float>(dsgd_rank(session) + 1));
  Error error;
  ASSERT_EQ(dsgd_allreduce(session, nullptr, values.data(), values.data(), count * sizeof(float),
                           DSGD_FLOAT32, DSGD_SUM, nullptr, nullptr, error),
            DSGD_OK)
      << error.message();
  EXPECT_EQ(values, std::vector<float>(count, static_cast<float>(workers * (workers + 1) / 2)));
}

TEST(TlsJob, WorkersReduceEverySizeWithAndWithoutAToken) {
  dsgd::TestAuthority ca;
  const auto files = ca.issue("worker");
  for (const int workers : {2, 3, 4}) {
    for (const char* token : {"", "secret"}) {
      for (const char* algorithm : {"direct", "ring"}) {
        run_job(workers, tls_settings(files, {{"token", token}, {"algorithm", algorithm}}),
                [workers](dsgd_session* session, int) {
                  for (const size_t count : {size_t{1}, size_t{1000}, size_t{100'003}, size_t{3'000'000}})
                    expect_sum(session, workers, count);
                });
      }
    }
  }
}

TEST(TlsJob, AJobOutlivesTheCertificateThatItBeganWith) {
  dsgd::TestAuthority ca;
  const auto files = ca.issue("worker");
  run_job(2, tls_settings(files, {{"lease", "2s"}}), [&](dsgd_session* session, int rank) {
    expect_sum(session, 2, 1000);
    if (rank == 0) ca.issue("worker");
    expect_sum(session, 2, 1000);
    EXPECT_THAT(logged(session), testing::Not(HasSubstr("stays in use")));
  });
}

TEST(TlsJob, TlsSufficesToListenBeyondLoopback) {
  dsgd::TestAuthority ca;
  for (const bool tls : {false, true}) {
    dsgd_config* config = dsgd_config_new();
    Settings settings = {{"head", "0.0.0.0:0"}, {"num_workers", "2"}};
    if (tls) settings = tls_settings(ca.issue("head"), settings);
    for (const auto& [key, value] : settings) dsgd_config_set(config, key.c_str(), value.c_str(), nullptr);
    dsgd_head* head = nullptr;
    Error error;
    EXPECT_EQ(dsgd_head_start(config, &head, error), tls ? DSGD_OK : DSGD_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(error.message(), HasSubstr(tls ? "" : "or `tls_cert`, `tls_key` and `tls_ca`"));
    dsgd_config_free(config);
    dsgd_head_free(head);
  }
}

// A worker that does not fit is told at once, long before init_timeout.
TEST(TlsJob, AWorkerThatDoesNotFitIsToldAtOnce) {
  dsgd::TestAuthority ca, other;
  auto half_trusted = other.issue("worker");
  half_trusted.ca = ca.path("ca.pem");
  const Settings good = tls_settings(ca.issue("head"));
  struct Case {
    Settings head, worker;
    const char* text;
  };
  for (const Case& c : {Case{good, tls_settings(other.issue("w")), "unable to get local issuer certificate"},
                        {good, tls_settings(half_trusted), "the peer refused the TLS connection: unknown CA"},
                        {good, tls_settings(ca.issue("old", -60)), "certificate expired"},
                        {good, {}, "the peer uses TLS, and this process does not; set `tls_cert`"},
                        {{}, good, "the peer answers without TLS; set `tls_cert`"}}) {
    dsgd_head* head = nullptr;
    dsgd_config* config = dsgd_config_new();
    Settings settings = c.head;
    settings.merge(Settings{{"head", "127.0.0.1:0"}, {"num_workers", "2"}});
    for (const auto& [key, value] : settings) dsgd_config_set(config, key.c_str(), value.c_str(), nullptr);
    DSGD_OK_OR_FAIL(dsgd_head_start(config, &head, error_));
    dsgd_config_free(config);
    config = dsgd_config_new();
    settings = c.worker;
    settings.merge(Settings{{"head", dsgd_head_address(head)},
                            {"num_workers", "2"},
                            {"embed_head", "never"},
                            {"init_timeout", "300s"}});
    for (const auto& [key, value] : settings) dsgd_config_set(config, key.c_str(), value.c_str(), nullptr);
    dsgd_session* session = nullptr;
    Error error;
    EXPECT_NE(dsgd_init(config, &session, error), DSGD_OK);
    EXPECT_NE(error.code(), DSGD_ERR_TIMEOUT) << error.message();
    EXPECT_THAT(error.message(), HasSubstr(c.text));
    EXPECT_THAT(error.message(), HasSubstr(dsgd_head_address(head)));
    dsgd_config_free(config);
    dsgd_head_free(head);
  }
}

TEST(TlsJob, AnUnusableFileFailsDsgdInitAndNamesTheKey) {
  dsgd::TestAuthority ca;
  auto files = ca.issue("worker");
  files.ca = ca.path("none.pem");
  dsgd_config* config = dsgd_config_new();
  Settings settings = tls_settings(files, {{"head", "127.0.0.1:0"}, {"num_workers", "2"}});
  for (const auto& [key, value] : settings) dsgd_config_set(config, key.c_str(), value.c_str(), nullptr);
  dsgd_session* session = nullptr;
  Error error;
  EXPECT_EQ(dsgd_init(config, &session, error), DSGD_ERR_INVALID_ARGUMENT);
  EXPECT_STREQ(dsgd_error_parameter(error.error), "tls_ca");
  EXPECT_THAT(error.message(), HasSubstr("none.pem' cannot be read: no such file or directory (ENOENT)"));
  dsgd_config_free(config);
}

}  // namespace
}  // namespace dsgd_test::tls_test

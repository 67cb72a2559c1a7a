#include "core/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>

namespace dsgd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

const ConfigKey* find_key(const std::string& name) {
  for (const ConfigKey& key : config_keys())
    if (name == key.name) return &key;
  return nullptr;
}

Config config_with(std::vector<std::pair<std::string, std::string>> values) {
  Config config;
  for (const auto& [key, value] : values) {
    const Status status = config.set(key, value);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return config;
}

Config in_environment(std::vector<std::pair<std::string, std::string>> variables) {
  Config config;
  config.set_environment(std::move(variables));
  return config;
}

TEST(ConfigKeys, are_complete_and_alphabetical) {
  const std::set<std::string> types = {"string", "integer", "duration", "size", "switch", "choice"};
  std::vector<std::string> names;
  for (const ConfigKey& key : config_keys()) {
    names.emplace_back(key.name);
    EXPECT_TRUE(types.contains(key.type)) << key.name;
    std::string variable = "DSGD_";
    for (const char* c = key.name; *c; ++c) variable += static_cast<char>(std::toupper(*c));
    EXPECT_EQ(key.environment, variable);
    const std::string help = key.help;
    ASSERT_NE(help, "") << key.name;
    EXPECT_TRUE(std::isupper(help.front()) && help.ends_with('.')) << key.name;
    EXPECT_STRNE(key.range, "") << key.name;
  }
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(names, (std::vector<std::string>{"absent",
                                             "algorithm",
                                             "bucket_size",
                                             "checkpoint_dir",
                                             "checkpoint_interval",
                                             "checkpoint_keep",
                                             "checksum",
                                             "copies",
                                             "devices",
                                             "devices_per_worker",
                                             "early_update",
                                             "embed_head",
                                             "fingerprint",
                                             "gradient_norm",
                                             "head",
                                             "head_state",
                                             "head_timeout",
                                             "heartbeat_interval",
                                             "init_timeout",
                                             "interface",
                                             "internode",
                                             "job",
                                             "launcher",
                                             "launcher_port",
                                             "lease",
                                             "listen",
                                             "log_level",
                                             "log_to",
                                             "loss_scale",
                                             "max_workers",
                                             "min_workers",
                                             "nccl_library",
                                             "nonfinite",
                                             "num_workers",
                                             "ports",
                                             "rank",
                                             "receive_memory",
                                             "rejoin_timeout",
                                             "reproducible",
                                             "servers",
                                             "spin",
                                             "stall_warning",
                                             "step_timeout",
                                             "straggler_timeout",
                                             "strategy",
                                             "supervisor",
                                             "tls_ca",
                                             "tls_cert",
                                             "tls_key",
                                             "token",
                                             "trace_spans",
                                             "wire",
                                             "worker_id"}));
}

TEST(ConfigKeys, every_default_is_a_valid_value) {
  for (const ConfigKey& key : config_keys()) {
    Config config;
    EXPECT_TRUE(config.set(key.name, key.default_value).ok()) << key.name;
    EXPECT_EQ(*config.get(key.name), key.default_value);
  }
  EXPECT_TRUE(Config().validate().ok());
}

TEST(ConfigKeys, every_choice_and_switch_takes_what_its_range_lists_and_nothing_else) {
  for (const ConfigKey& key : config_keys()) {
    const std::string type = key.type;
    if (type != "choice" && type != "switch") continue;
    std::string rest = key.range;
    int listed = 0;
    for (size_t bar; !rest.empty(); rest = bar == std::string::npos ? "" : rest.substr(bar + 3), ++listed) {
      bar = rest.find(" | ");
      EXPECT_TRUE(Config().set(key.name, rest.substr(0, bar)).ok()) << key.name << " " << rest;
    }
    EXPECT_GE(listed, 2) << key.name;
    for (const char* bad : {"", "nonsense", "2", "true", " 1"})
      EXPECT_FALSE(Config().set(key.name, bad).ok()) << key.name << " '" << bad << "'";
  }
}

TEST(ConfigKeys, every_number_takes_the_ends_of_its_range_and_nothing_beyond) {
  const struct {
    const char* key;
    std::vector<const char*> good, bad;
  } cases[] = {
      {"bucket_size",
       {"", "4K", "1G", "4096", "1024M", "5000"},
       {"4095", "3K", "1025M", "1073741825", "2G", "-4K"}},
      {"devices_per_worker", {"0", "1024"}, {"-1", "1025", "", "two", "1.5"}},
      {"heartbeat_interval", {"0", "0s", "10ms", "30m", "1800s"}, {"9ms", "1ns", "31m", "-1s", ""}},
      {"head_timeout", {"10ms", "60s", "24h"}, {"9ms", "0", "25h", ""}},
      {"init_timeout", {"10ms", "24h", "1440m"}, {"9ms", "0", "25h", "60", ""}},
      {"launcher_port", {"0", "1", "65535"}, {"-1", "65536", "", "http"}},
      {"lease", {"500ms", "1h", "500000us", "500000000ns"}, {"499ms", "0", "61m", "2h", "10", ""}},
      {"loss_scale",
       {"off", "dynamic", "1", "65536", "1000000000000"},
       {"0", "-1", "1.5", "", "on", "dynamic ", "1000000000001", "1..1000000000000"}},
      {"max_workers", {"", "1", "65536"}, {"0", "65537", "-1"}},
      {"min_workers", {"", "1", "65536"}, {"0", "65537", "-1"}},
      {"num_workers",
       {"1", "65536"},
       {"0", "65537", "-1", "", "four", "4 ", "0x4", "1e3", "99999999999999999999"}},
      {"rank", {"-1", "0", "65535"}, {"-2", "65536", "", "+1"}},
      {"receive_memory", {"1M", "1T", "1024G"}, {"1023K", "2T", "0", "", "256"}},
      {"servers", {"0", "65536"}, {"-1", "65537", ""}},
      {"spin", {"", "0", "1ns", "50us", "1s", "1000ms"}, {"1001ms", "2s", "-1us", "50"}},
      {"rejoin_timeout", {"0", "0s", "10ms", "24h"}, {"9ms", "25h", "-1s", ""}},
      {"stall_warning", {"1s", "30s", "24h"}, {"999ms", "0", "25h", ""}},
      {"step_timeout", {"10ms", "300s", "24h"}, {"9ms", "0", "25h", ""}},
      {"straggler_timeout", {"0", "500ms", "60s", "24h"}, {"499ms", "25h", ""}},
      {"checkpoint_interval", {"0", "1000000000"}, {"-1", "1000000001", ""}},
      {"checkpoint_keep", {"0", "1000000"}, {"-1", "1000001", ""}},
      {"copies", {"1", "8"}, {"0", "9", "-1", "", "two"}},
      {"trace_spans", {"0", "16777216"}, {"-1", "16777217", ""}},
  };
  std::set<std::string> tested;
  for (const auto& test : cases) {
    tested.insert(test.key);
    for (const char* value : test.good) {
      const Status status = Config().set(test.key, value);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    for (const char* value : test.bad) {
      Config config;
      const Status status = config.set(test.key, value);
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << test.key << " '" << value << "'";
      EXPECT_EQ(status.parameter(), test.key);
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr(std::string("key '") + test.key + "'"),
                        HasSubstr(std::string("'") + value + "'"), HasSubstr(find_key(test.key)->range)));
      EXPECT_EQ(*config.get(test.key), find_key(test.key)->default_value) << "a refused value was kept";
    }
  }
  for (const ConfigKey& key : config_keys()) {
    const std::string type = key.type;
    const bool number = type == "integer" || type == "duration" || type == "size";
    EXPECT_EQ(tested.contains(key.name), number) << key.name;
  }
}

TEST(ConfigKeys, every_text_takes_good_values_and_refuses_bad_ones) {
  const std::string longest(255, 'x'), too_long(256, 'x');
  const std::vector<std::string> addresses = {
      "10.0.0.1:7700",       "localhost:0",    "node-7.cluster:65535",           "[::1]:7700",
      "[fe80::1%eth0]:7700", "unix:/tmp/head", "unix:/" + std::string(106, 'x'), ""};
  const std::vector<std::string> bad_addresses = {"10.0.0.1",
                                                  "host:",
                                                  ":7700",
                                                  "host:65536",
                                                  "host:-1",
                                                  "host:http",
                                                  "::1:7700",
                                                  "[::1]",
                                                  "[]:1",
                                                  "unix:",
                                                  "unix:/" + std::string(107, 'x'),
                                                  "a b:1",
                                                  "http://h:1",
                                                  "[::1:7",
                                                  "host:1\n"};
  auto heads = addresses, bad_heads = bad_addresses;
  heads.insert(heads.end(), {"a:7700,b:7700", "10.0.0.1:1,[::1]:2,c:3", "unix:/tmp/a,b"});
  bad_heads.insert(bad_heads.end(), {",", "a:1,", ",a:1", "a:1,b", "a:1,unix:/tmp/head", "a:1, b:1"});
  const struct {
    const char* key;
    std::vector<std::string> good, bad;
  } cases[] = {
      {"devices",
       {"cpu", "cpu,cpu", "cpu, cpu", "cuda:0,cuda:1", "cuda:00", "auto"},
       {"",          ",",       "auto,cpu",
        "cpu, auto", "cpu,",    "cpu,,cpu",
        "cpu cpu",   "c\tpu",   "foo",
        "atuo",      "auto:2",  "cpu:0",
        "CPU",       "gpu:0",   "cuda:0,gpu:1",
        "cuda",      "cuda:",   "cuda:x",
        "cuda:0x",   "cuda:-0", "cuda:99999999999"}},
      {"head", heads, bad_heads},
      {"interface", {"", "eth0", "10.0.0.3", "10.0.0.0/8", longest}, {too_long, "eth\n0"}},
      {"job", {"default", "a", longest}, {"", too_long, std::string("a\0b", 3), "a\x7f", "caf\xe9"}},
      {"listen", addresses, bad_addresses},
      {"fingerprint", {"", "model 8, torch 2.9", std::string(4095, 'x')}, {std::string(4096, 'x'), "a\nb"}},
      {"checkpoint_dir",
       {"", "checkpoints", "/data/x y", std::string(4095, 'x')},
       {std::string(4096, 'x'), "a\nb"}},
      {"head_state",
       {"", "/var/lib/job.head", "etcd://a:2379,[::1]:2379/dsgd", "etcds://a:2379", std::string(4095, 'x')},
       {std::string(4096, 'x'), "a\nb"}},
      {"nccl_library",
       {"", "/opt/nccl/lib/libnccl.so.2", std::string(4095, 'x')},
       {std::string(4096, 'x'), "a\nb"}},
      {"ports", {"", "1", "7701-7720", "65535"}, {"0", "x", "7720-7701", "1-65536"}},
      {"supervisor", {"", "@0a1b2", longest}, {too_long, "@a\nb"}},
      {"tls_ca", {"", "/etc/dsgd/ca.pem"}, {std::string(4096, 'x'), "a\nb"}},
      {"tls_cert", {"", "node1.pem", std::string(4095, 'x')}, {std::string(4096, 'x'), "a\nb"}},
      {"tls_key", {"", "node1.key", std::string(4095, 'x')}, {std::string(4096, 'x'), "a\nb"}},
      {"token", {"", "secret # = word", longest}, {too_long, "a\nb"}},
      {"worker_id", {"", "node7-2", longest}, {too_long, "a\tb"}},
  };
  std::set<std::string> tested;
  for (const auto& test : cases) {
    tested.insert(test.key);
    for (const std::string& value : test.good) {
      const Status status = Config().set(test.key, value);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    for (const std::string& value : test.bad) {
      const Status status = Config().set(test.key, value);
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << test.key << " '" << value << "'";
      EXPECT_THAT(status.message(), HasSubstr(std::string("key '") + test.key + "'"));
    }
  }
  for (const ConfigKey& key : config_keys())
    EXPECT_EQ(tested.contains(key.name), std::string(key.type) == "string") << key.name;
}

TEST(Config, messages_name_the_remedy) {
  const struct {
    const char *key, *value, *message;
  } cases[] = {
      {"lease", "5",
       "key 'lease': '5' is not a duration; write a whole number and a unit, such as 500ms, 10s or 5m (range "
       "500ms..1h)"},
      {"lease", "400ms", "key 'lease': '400ms' is out of range; use 500ms..1h"},
      {"bucket_size", "4MB", "is not a size; write for example 64K, 4M or 1G"},
      {"reproducible", "yes", "key 'reproducible': 'yes' is not a switch; write 0 or 1"},
      {"loss_scale", "0.5", "key 'loss_scale': '0.5' is not one of off | dynamic | 1..1000000000000"},
      {"strategy", "allreduec", "did you mean 'allreduce'?"},
      {"head", "10.0.0.1",
       "'10.0.0.1' has no port; write HOST:PORT (port 0 lets the system choose where `dsgd head` listens)"},
      {"listen", "10.0.0.1", "'10.0.0.1' has no port; write HOST:PORT (port 0 lets the system choose)"},
      {"head", "7700", "'7700' has no host; write HOST:PORT"},
      {"head", "::1:7700", "write an IPv6 address as [IPV6]:PORT"},
      {"head", "h:70000", "has a bad port '70000'; ports are 0..65535"},
      {"head", "h@a:1", "has a bad host; write letters, digits, '.', '-' and '_' only, or [IPV6]:PORT"},
      {"listen", "[::1:0", "'[::1:0' is not an address; write HOST:PORT or [IPV6]:PORT"},
      {"head",
       "unix:/tmp/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/"
       "0123456789/0123456789",
       "has a path of 114 bytes, but a Unix socket's has at most 107; choose a shorter path"},
      {"devices", "cuda:0,gpu:1",
       "key 'devices': 'cuda:0,gpu:1' is not a list of devices: unknown device 'gpu:1'; use cpu or cuda:N; "
       "auto, as "
       "the only entry, takes every GPU of this process"},
      {"devices", "cuda",
       "device 'cuda' has no valid index; write cuda:0 for the first one; auto, as the only entry"},
      {"devices", "cuda:99999999999", "device 'cuda:99999999999' does not exist: its index is too large"},
      {"hearbeat_interval", "1s", "unknown key 'hearbeat_interval'; did you mean 'heartbeat_interval'?"},
      {"HEAD", "x:1", "unknown key 'HEAD'; did you mean 'head'?"},
      {"zzzzzz", "1", "unknown key 'zzzzzz'; `dsgd config` lists all keys"},
      {"", "1", "unknown key ''"},
  };
  for (const auto& test : cases) {
    const Status status = Config().set(test.key, test.value);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(test.message));
    EXPECT_EQ(status.parameter(), test.key);
  }
}

TEST(Config, a_bad_token_is_not_repeated_in_the_message) {
  const std::string secret(300, 'S');
  const Status status = Config().set("token", secret);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), testing::Not(HasSubstr("SSS")));
}

TEST(Config, messages_stay_short_and_printable_whatever_is_given) {
  const Status status = Config().set("rank", std::string(100000, '\x01'));
  EXPECT_LT(status.message().size(), 400u);
  for (const char c : status.message()) EXPECT_GE(c, 0x20);
}

TEST(Config, typed_getters_read_units) {
  Config config = config_with({{"lease", "2m"},
                               {"bucket_size", "3M"},
                               {"num_workers", "12"},
                               {"reproducible", "1"},
                               {"head", "h:1"},
                               {"step_timeout", "1h"},
                               {"spin", "7us"},
                               {"receive_memory", "2G"}});
  EXPECT_EQ(config.duration("lease"), seconds(120));
  EXPECT_EQ(config.duration("step_timeout"), seconds(3600));
  EXPECT_EQ(config.duration("spin"), std::chrono::microseconds(7));
  EXPECT_EQ(config.size("bucket_size"), 3u << 20);
  EXPECT_EQ(config.size("receive_memory"), uint64_t{2} << 30);
  EXPECT_EQ(config.integer("num_workers"), 12);
  EXPECT_TRUE(config.flag("reproducible"));
  EXPECT_FALSE(config.flag("gradient_norm"));
  EXPECT_EQ(config.text("head"), "h:1");
  EXPECT_EQ(config.get("no_such_key"), nullptr);
}

TEST(Config, defaults) {
  const Config config;
  EXPECT_EQ(config.duration("step_timeout"), seconds(300));
  EXPECT_EQ(config.duration("lease"), seconds(10));
  EXPECT_EQ(config.duration("heartbeat_interval"), seconds(2));
  EXPECT_EQ(config.duration("init_timeout"), seconds(60));
  EXPECT_EQ(config.duration("spin").count(), 0);
  EXPECT_EQ(config.size("bucket_size"), 0u);
  EXPECT_EQ(config.size("receive_memory"), 256u << 20);
  EXPECT_EQ(config.integer("num_workers"), 1);
  EXPECT_EQ(config.integer("min_workers"), 1);
  EXPECT_EQ(config.integer("rank"), -1);
  EXPECT_EQ(config.text("strategy"), "allreduce");
  EXPECT_EQ(config.text("algorithm"), "auto");
  EXPECT_EQ(config.text("embed_head"), "auto");
  EXPECT_EQ(config.text("job"), "default");
}

TEST(Config, derived_values_follow_what_they_are_derived_from) {
  Config config = config_with({{"lease", "500ms"}, {"num_workers", "6"}});
  EXPECT_EQ(config.duration("heartbeat_interval"), milliseconds(100));
  EXPECT_EQ(config.integer("min_workers"), 6);
  EXPECT_TRUE(config.set("heartbeat_interval", "50ms").ok());
  EXPECT_EQ(config.duration("heartbeat_interval"), milliseconds(50));
}

TEST(Config, set_wins_over_environment_over_file_over_default) {
  Config config;
  EXPECT_EQ(*config.get("job"), "default");
  ASSERT_TRUE(config.parse("job = from-file", "f").ok());
  EXPECT_EQ(*config.get("job"), "from-file");
  config.set_environment({{"DSGD_JOB", "from-environment"}});
  EXPECT_EQ(*config.get("job"), "from-environment");
  ASSERT_TRUE(config.set("job", "set").ok());
  EXPECT_EQ(*config.get("job"), "set");
  config.set_environment({});
  EXPECT_EQ(*config.get("job"), "set");
  EXPECT_TRUE(config.validate().ok());
}

TEST(Config, environment_ignores_what_is_not_dsgds) {
  const Config config =
      in_environment({{"PATH", "/bin"}, {"DSGDX", "1"}, {"dsgd_job", "x"}, {"DSGD_RANK", "0"}});
  EXPECT_TRUE(config.validate().ok());
  EXPECT_EQ(config.integer("rank"), 0);
}

TEST(Config, unknown_variables_are_warnings_that_name_the_nearest_key) {
  const Config config = in_environment({{"DSGD_HEARTBEAT_INTERVALL", "1s"},
                                        // Kubernetes, for a service dsgd-head.
                                        {"DSGD_HEAD_SERVICE_HOST", "10.0.0.1"},
                                        {"DSGD_HEAD_PORT", "tcp://10.0.0.1:7700"},
                                        {"DSGD_SOMETHING_ELSE_ALTOGETHER", ""},
                                        {"DSGD_JOB", "x"}});
  EXPECT_TRUE(config.validate().ok()) << config.validate().message();
  EXPECT_THAT(
      config.warnings(),
      testing::ElementsAre(
          "unknown environment variable DSGD_HEARTBEAT_INTERVALL is ignored; did you mean "
          "'DSGD_HEARTBEAT_INTERVAL'?",
          HasSubstr("DSGD_HEAD_SERVICE_HOST is ignored"), HasSubstr("DSGD_HEAD_PORT is ignored"),
          "unknown environment variable DSGD_SOMETHING_ELSE_ALTOGETHER is ignored; `dsgd config` lists "
          "those that are read"));
}

TEST(Config, errors_name_misspelt_variables_of_keys_that_are_not_given) {
  const auto error = [](std::vector<std::pair<std::string, std::string>> variables) {
    Config config = in_environment(std::move(variables));
    const auto note = config.apply_launcher();
    return (note.ok() ? config.validate() : note.status()).message();
  };
  EXPECT_THAT(
      error({{"DSGD_NUM_WORKER", "4"}, {"DSGD_HEAD", "127.0.0.1:7700"}}),
      AllOf(HasSubstr("'num_workers' is not"),
            testing::EndsWith("; the environment has the unknown variable DSGD_NUM_WORKER: did you mean "
                              "DSGD_NUM_WORKERS?")));
  EXPECT_THAT(error({{"DSGD_NUM_WORKERS", "4"}, {"DSGD_HAED", "h:1"}}),
              HasSubstr("has the unknown variable DSGD_HAED: did you mean DSGD_HEAD?"));
  EXPECT_THAT(error({{"DSGD_RANK", "3"}, {"DSGD_NUMWORKERS", "4"}}),
              AllOf(HasSubstr("'rank'"), HasSubstr("variable DSGD_NUMWORKERS:")));
  // An error of a launcher's environment.
  EXPECT_THAT(error({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"DSGD_HED", "h:1"}}),
              AllOf(HasSubstr("MASTER_ADDR"), HasSubstr("variable DSGD_HED:")));
  // The key is given, or the variable resembles none.
  EXPECT_THAT(error({{"DSGD_LEASE", "x"}, {"DSGD_LEESE", "1s"}, {"DSGD_SOMETHING_ELSE_ALTOGETHER", ""}}),
              testing::Not(HasSubstr("the environment has")));
  // Kubernetes, for a service dsgd-head.
  EXPECT_THAT(error({{"DSGD_LEASE", "x"}, {"DSGD_HEAD_SERVICE_HOST", "h"}, {"DSGD_HEAD_SERVICE_PORT", "1"}}),
              AllOf(HasSubstr("DSGD_HEAD_SERVICE_HOST"), testing::Not(HasSubstr("DSGD_HEAD_SERVICE_PORT"))));
}

TEST(Config, ports_are_one_or_a_range) {
  Config config;
  EXPECT_EQ(config.ports().first, 0);
  for (const char* wrong :
       {"0", "x", "7701-", "-7701", "7720-7701", "65536", "1-65536", "1-2-3", "7701 - 7720"}) {
    const Status status = config.set("ports", wrong);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << wrong;
    EXPECT_THAT(status.message(), HasSubstr("7701-7720")) << wrong;
  }
  ASSERT_TRUE(config.set("ports", "7701-7720").ok());
  EXPECT_EQ(config.ports().first, 7701);
  EXPECT_EQ(config.ports().last, 7720);
  ASSERT_TRUE(config.set("ports", "65535").ok());
  EXPECT_EQ(config.ports().first, 65535);
  EXPECT_EQ(config.ports().last, 65535);
}

TEST(Config, numbers_in_messages_are_exact_and_nan_has_no_sign) {
  EXPECT_EQ(number_text(-std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(number_text(1e12), "1e+12");
  EXPECT_NE(number_text(std::nextafter(1e12, 2e12)), "1e+12");
}

TEST(Config, bad_values_in_the_environment_wait_for_validate) {
  const struct {
    const char *name, *value, *message;
  } cases[] = {
      {"DSGD_LEASE", "1", "environment variable DSGD_LEASE: key 'lease': '1' is not a duration"},
      {"DSGD_NUM_WORKERS", "",
       "environment variable DSGD_NUM_WORKERS: key 'num_workers': '' is not a whole number"},
  };
  for (const auto& test : cases) {
    const Status status = in_environment({{test.name, test.value}}).validate();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(test.message));
  }
  Config overridden = in_environment({{"DSGD_LEASE", "1"}});
  ASSERT_TRUE(overridden.set("lease", "1s").ok());
  EXPECT_TRUE(overridden.validate().ok()) << "a bad variable that is not used does no harm";
}

TEST(Config, a_bad_log_level_counts_as_the_default_until_validate_reports_it) {
  const Config config = in_environment({{"DSGD_LOG_LEVEL", "loud"}});
  EXPECT_EQ(config.text("log_level"), "info");
  EXPECT_FALSE(config.validate().ok());
}

TEST(Config, files_have_comments_blank_lines_and_any_line_ends) {
  Config config;
  const Status status = config.parse(
      "# a job\n\n  num_workers=4\r\nhead =  node1:7700   # the first one\njob\t=\tnight # run\ntoken = "
      "a#b=c\n   \n"
      "worker_id =\nlease = 1s",
      "job.conf");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(config.integer("num_workers"), 4);
  EXPECT_EQ(config.text("head"), "node1:7700");
  EXPECT_EQ(config.text("job"), "night");
  EXPECT_EQ(config.text("token"), "a#b=c");
  EXPECT_EQ(config.text("worker_id"), "");
  EXPECT_EQ(config.duration("lease"), seconds(1));
  EXPECT_TRUE(config.parse("", "empty").ok());
}

TEST(Config, files_are_taken_whole_or_not_at_all_and_errors_name_the_line) {
  const struct {
    const char *text, *message;
  } cases[] = {
      {"num_workers = 2\nlease 5s\n", "job.conf:2: 'lease 5s' is not key = value"},
      {"num_workers = 2\n\n# x\nlaese = 5s\n", "job.conf:4: unknown key 'laese'; did you mean 'lease'?"},
      {"num_workers = 2\nlease = 5\n", "job.conf:2: key 'lease': '5' is not a duration"},
      {"num_workers = 2\njob = a\nnum_workers = 3\n",
       "job.conf:3: key 'num_workers' was given in line 1 already; remove one of them"},
      {"num_workers = 2\n= 3\n", "job.conf:2: unknown key ''"},
  };
  for (const auto& test : cases) {
    Config config;
    const Status status = config.parse(test.text, "job.conf");
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(test.message));
    EXPECT_EQ(config.integer("num_workers"), 1);
  }
}

TEST(Config, a_later_file_wins_over_an_earlier_one) {
  Config config;
  ASSERT_TRUE(config.parse("job = a\nlease = 1s", "1").ok());
  ASSERT_TRUE(config.parse("job = b", "2").ok());
  EXPECT_EQ(config.text("job"), "b");
  EXPECT_EQ(config.duration("lease"), seconds(1));
}

TEST(Config, validate_refuses_what_does_not_go_together) {
  using Values = std::vector<std::pair<std::string, std::string>>;
  const struct {
    Values values;
    Code code;
    const char *parameter, *message;
  } cases[] = {
      {{{"num_workers", "2"}}, Code::kInvalidArgument, "head", "key 'head' is not set, but num_workers is 2"},
      {{{"head", "h:1"}},
       Code::kInvalidArgument,
       "num_workers",
       "'num_workers' is not: set num_workers (or DSGD_NUM_WORKERS)"},
      {{{"num_workers", "2"}, {"head", "h:1"}, {"rank", "2"}},
       Code::kInvalidArgument,
       "rank",
       "key 'rank': 2 is too large, since num_workers is 2"},
      {{{"rank", "1"}}, Code::kInvalidArgument, "rank", "num_workers is 1"},
      {{{"num_workers", "4"}, {"head", "h:1"}, {"min_workers", "3"}, {"early_update", "1"}},
       Code::kInvalidArgument,
       "early_update",
       "set early_update = 0, or leave min_workers, max_workers and rejoin_timeout unset"},
      {{{"num_workers", "4"}, {"head", "h:1"}, {"max_workers", "3"}},
       Code::kInvalidArgument,
       "max_workers",
       "3 is too few, since num_workers is 4; leave max_workers unset"},
      {{{"num_workers", "4"}, {"head", "h:1"}, {"min_workers", "5"}},
       Code::kInvalidArgument,
       "min_workers",
       "5 is too many"},
      {{{"num_workers", "4"}, {"head", "h:1"}, {"straggler_timeout", "60s"}},
       Code::kInvalidArgument,
       "straggler_timeout",
       "cannot go on without it; set min_workers to less than num_workers (4), or straggler_timeout to 0"},
      {{{"num_workers", "4"}, {"head", "h:1"}, {"min_workers", "3"}, {"straggler_timeout", "9s"}},
       Code::kInvalidArgument,
       "straggler_timeout",
       "'9s' is less than lease ('10s')"},
      {{{"num_workers", "4"}, {"head", "h:1"}, {"servers", "5"}},
       Code::kInvalidArgument,
       "servers",
       "5 is too many"},
      {{{"lease", "1s"}, {"heartbeat_interval", "501ms"}},
       Code::kInvalidArgument,
       "heartbeat_interval",
       "'501ms' is more than half of lease ('1s')"},
      {{{"tls_cert", "a.pem"}, {"tls_ca", "ca.pem"}},
       Code::kInvalidArgument,
       "tls_key",
       "key 'tls_key' is not set, but 'tls_cert' is: TLS needs all of"},
      {{{"tls_key", "a.key"}}, Code::kInvalidArgument, "tls_cert", "'tls_cert' is not set, but 'tls_key' is"},
      {{{"tls_cert", "a.pem"}, {"tls_key", "a.key"}},
       Code::kInvalidArgument,
       "tls_ca",
       "'tls_ca' is not set"},
      {{{"head_state", "etcds://a:2379/jobs"}},
       Code::kInvalidArgument,
       "head_state",
       "key 'head_state': 'etcds://a:2379/jobs' reaches etcd by TLS, but the job has no certificate; set "
       "tls_cert, tls_key and tls_ca, or use etcd://"},
      {{{"devices", "cpu,cpu"}, {"devices_per_worker", "3"}},
       Code::kInvalidArgument,
       "devices_per_worker",
       "3 is more than the 2 of devices"},
      {{{"checkpoint_interval", "10"}},
       Code::kInvalidArgument,
       "checkpoint_dir",
       "key 'checkpoint_interval' is 10, but checkpoint_dir is not set"},
      {{{"nonfinite", "fail"}, {"loss_scale", "dynamic"}},
       Code::kInvalidArgument,
       "nonfinite",
       "'fail' cannot be combined with loss_scale = dynamic"},
      {{{"nonfinite", "zero"}, {"loss_scale", "dynamic"}},
       Code::kInvalidArgument,
       "nonfinite",
       "set nonfinite to skip or off"},
      {{{"wire", "bf16"}, {"reproducible", "1"}},
       Code::kInvalidArgument,
       "wire",
       "'bf16' cannot be combined with reproducible = 1"},
      {{{"wire", "fp16"}},
       Code::kInvalidArgument,
       "wire",
       "'fp16' needs loss_scale, which skips a step whose sums overflow"},
  };
  for (const auto& test : cases) {
    const Status status = config_with(test.values).validate();
    EXPECT_EQ(status.code(), test.code) << status.message();
    EXPECT_EQ(status.parameter(), test.parameter);
    EXPECT_THAT(status.message(), HasSubstr(test.message));
  }
  for (const Values& values :
       {Values{{"num_workers", "4"}, {"head", "h:1"}, {"rank", "3"}, {"min_workers", "4"}, {"servers", "4"}},
        Values{{"num_workers", "4"}, {"head", "h:1"}, {"min_workers", "3"}},
        Values{{"num_workers", "4"}, {"head", "h:1"}, {"min_workers", "3"}, {"straggler_timeout", "10s"}},
        Values{{"lease", "1s"}, {"heartbeat_interval", "500ms"}},
        Values{{"devices", "cpu,cpu"}, {"devices_per_worker", "2"}},
        Values{{"head_state", "etcds://a:1"}, {"tls_cert", "a"}, {"tls_key", "b"}, {"tls_ca", "c"}},
        Values{{"head_state", "etcd://a:1"}, {"tls_cert", "a"}, {"tls_key", "b"}, {"tls_ca", "c"}},
        Values{{"nonfinite", "skip"}, {"loss_scale", "dynamic"}},
        Values{{"nonfinite", "fail"}, {"loss_scale", "1024"}},
        Values{{"wire", "fp16"}, {"loss_scale", "dynamic"}}, Values{{"wire", "bf16"}},
        Values{{"devices", "auto"}, {"devices_per_worker", "2"}}}) {
    const Status status = config_with(values).validate();
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(Config, a_straggler_timeout_that_is_not_below_step_timeout_is_a_warning_of_workers) {
  const Config config = config_with({{"straggler_timeout", "20s"}, {"step_timeout", "20s"}});
  ASSERT_EQ(config.warnings().size(), 1u);
  EXPECT_THAT(config.warnings()[0], HasSubstr("= 20s is not less than step_timeout = 20s"));
  EXPECT_TRUE(config.warnings(true).empty());
  EXPECT_TRUE(config_with({{"straggler_timeout", "20s"}, {"step_timeout", "21s"}}).warnings().empty());
}

TEST(Config, devices_are_split_over_the_workers_of_a_node) {
  using Names = std::vector<std::string>;
  const Config all = config_with({{"devices", "cpu, cuda:0"}});
  EXPECT_EQ(all.devices(0).value(), (Names{"cpu", "cuda:0"}));
  EXPECT_EQ(all.devices(3).value(), (Names{"cpu", "cuda:0"}));
  const Config split = config_with({{"devices", "cuda:0,cuda:1,cuda:2,cuda:3"}, {"devices_per_worker", "2"}});
  EXPECT_EQ(split.devices(0).value(), (Names{"cuda:0", "cuda:1"}));
  EXPECT_EQ(split.devices(1).value(), (Names{"cuda:2", "cuda:3"}));
  const auto beyond = split.devices(2);
  ASSERT_FALSE(beyond.ok());
  EXPECT_THAT(beyond.status().message(), AllOf(HasSubstr("'cuda:0,cuda:1,cuda:2,cuda:3' has 4 entries"),
                                               HasSubstr("local rank 2"), HasSubstr("number 4 to 5")));
  EXPECT_EQ(Config().devices(0).value(), Names{"cpu"});
}

}  // namespace
}  // namespace dsgd

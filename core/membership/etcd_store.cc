#include "core/membership/etcd_store.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/describe.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/base/while_alive.h"
#include "core/membership/head_record.h"

namespace dsgd {
namespace {

using nlohmann::json;
using transport::Duration;
using transport::Time;

constexpr Duration kShortestEtcdLease = std::chrono::seconds(2);  // which etcd grants with its default timing
constexpr Duration kLongestRequest = std::chrono::seconds(5);
constexpr Duration kFirstPause = std::chrono::milliseconds(50);

std::string leader_text(const std::string& address) { return json{{"head", address}}.dump(); }

std::string address_of(const std::string& leader) {
  constexpr size_t kMostBytes = 4096;
  const json text = leader.size() > kMostBytes ? json() : parse_json(leader);
  const auto head = text.find("head");
  return head != text.end() && head->is_string() ? printable(head->get<std::string>()) : "an unknown address";
}

// A job's name may have slashes; "a/b" under "p" is not "b" under "p/a".
std::string keys_of(const EtcdStore::Options& options) {
  std::string job;
  for (const char c : options.job) job += c == '/' ? "%2F" : c == '%' ? "%25" : std::string(1, c);
  return options.etcd.prefix + "/" + job + "/";
}

bool is_worth_another(const Status& why) {
  return why.code() == Code::kUnreachable || why.code() == Code::kTimeout ||
         why.code() == Code::kUnauthorized || why.code() == Code::kMismatch;
}

}  // namespace

Duration EtcdStore::lease_in_etcd(Duration lease) {
  return std::chrono::ceil<std::chrono::seconds>(std::max(lease, kShortestEtcdLease));
}

EtcdStore::EtcdStore(transport::Loop& loop, std::unique_ptr<transport::Http> http, Options options,
                     std::shared_ptr<Log> log)
    : loop_(loop),
      options_(std::move(options)),
      log_(std::move(log)),
      keys_(keys_of(options_)),
      leader_key_(keys_ + "leader"),
      record_key_(keys_ + "record"),
      ttl_(lease_in_etcd(options_.lease)),
      etcd_(loop, std::move(http), options_.etcd.servers, std::min(ttl_ / 4, kLongestRequest)) {}

void EtcdStore::start(std::string address, Events events) {
  address_ = std::move(address);
  events_ = std::move(events);
  look();
}

transport::TimerId EtcdStore::after(Duration wait, std::function<void()> then) {
  return loop_.schedule(loop_.now() + wait, if_alive(alive_, std::move(then)));
}

// Between two attempts; with jitter, so that heads do not ask in step.
Duration EtcdStore::pause() {
  return kFirstPause +
         Duration(static_cast<int64_t>(loop_.random() % static_cast<uint64_t>((ttl_ / 8).count())));
}

// ---- standing by

void EtcdStore::look() {
  if (phase_ != Phase::kLooking) return;
  etcd_.read({leader_key_, record_key_}, [this](const Result<Etcd::Reading>& reading) { on_look(reading); });
}

void EtcdStore::look_again(const Status& why) {
  if (events_.reached) {
    if (!is_worth_another(why) || ++attempts_ == etcd_.servers()) {
      phase_ = Phase::kOver;
      return std::exchange(events_.reached, nullptr)(
          Status(why.code(), "the head cannot use `head_state` = '" + options_.text + "': " + why.message() +
                                 "; it needs etcd 3.4 or later, " +
                                 (options_.etcd.tls ? "by HTTPS" : "by plain HTTP (etcds:// uses TLS)") +
                                 ", without a user's name")
              .with_parameter("head_state"));
    }
    return look();
  }
  if (warned_.empty())
    log_->warning("head: standing by; a request to etcd failed, retrying: " + why.message());
  warned_ = why.message();
  after(pause(), [this] { look(); });
}

void EtcdStore::on_look(const Result<Etcd::Reading>& reading) {
  if (phase_ != Phase::kLooking) return;
  if (!reading.ok()) return look_again(reading.status());
  if (auto reached = std::exchange(events_.reached, nullptr)) reached({});
  on_keys(reading.value());
}

// If there is no record any more, the job has ended; perhaps the keys are of another one already.
void EtcdStore::on_keys(const Etcd::Reading& keys) {
  const auto &leader = keys.values[0], &record = keys.values[1];
  if (has_begun_ && !record) {
    log_->info("head: the job for which it stood by has ended");
    return end({});
  }
  if (!leader) return campaign();
  if (record) {
    if (const auto read = read_record(*record); !read.ok()) return end(read.status());
  }
  has_begun_ = record.has_value();
  if (leader->lease != 0) warned_.clear();
  if (leader->lease == 0 && warned_.empty()) {
    warned_ = "no lease";
    log_->warning("head: the key '" + leader_key_ +
                  "' in etcd has no lease, so no head has made it; remove it");
  }
  if (std::exchange(stood_by_, leader->created) != leader->created)
    events_.standing_by(address_of(leader->bytes));
  const std::pair seen(leader->modified, record ? record->modified : 0);
  const bool changed = std::exchange(seen_, seen) != seen;
  // Some proxies end a watch at once, though nothing has changed.
  if (!std::exchange(told_, false) || changed) return wait_for_end(keys.revision);
  after(pause(), [this, revision = keys.revision] { wait_for_end(revision); });
}

Result<transport::HeadRecord> EtcdStore::read_record(const Etcd::Value& value) const {
  auto record = read_head_record(
      {reinterpret_cast<const std::byte*>(value.bytes.data()), value.bytes.size()}, options_.text,
      "give another prefix, or remove the key '" + record_key_ + "' to begin a new job");
  if (record.ok()) DSGD_RETURN_IF_ERROR(events_.check(record.value()));
  return record;
}

void EtcdStore::wait_for_end(int64_t revision) {
  etcd_.watch(keys_, revision + 1, ttl_, [this](const Status& status) {
    told_ = status.ok();
    if (status.ok() || status.code() == Code::kTimeout) return look();
    look_again(status);
  });
}

// ---- election

void EtcdStore::campaign() {
  const Time sent = loop_.now();
  etcd_.grant(ttl_, [this, sent](const Result<Etcd::Lease>& lease) {
    if (!lease.ok()) return look_again(lease.status());
    lease_ = lease.value();
    lease_end_ = sent + lease_.ttl;
    create_leader();
  });
}

void EtcdStore::create_leader() {
  etcd_.create(leader_key_, leader_text(address_), lease_.id, record_key_,
               [this](const Result<Etcd::Reading>& reading) { on_created(reading); });
}

void EtcdStore::on_created(const Result<Etcd::Reading>& reading) {
  if (!reading.ok()) {
    if (!is_worth_another(reading.status()) || loop_.now() >= lease_end_) return look_again(reading.status());
    after(pause(), [this] { create_leader(); });  // perhaps it was created, and the answer was lost
    return;
  }
  const auto& leader = reading.value().values[0];
  const bool own = leader && leader->lease == lease_.id;
  if (own && holds()) return serve(*leader, reading.value().values[1]);
  etcd_.revoke(lease_.id);
  leader && !own ? on_keys(reading.value()) : look();
}

void EtcdStore::serve(const Etcd::Value& leader, const std::optional<Etcd::Value>& record) {
  created_ = leader.created;
  phase_ = Phase::kServing;
  warned_.clear();
  expect_lease();
  renew();
  std::optional<transport::HeadRecord> earlier;
  record_ = record ? record->modified : 0;
  if (record) {
    auto read = read_record(*record);
    if (!read.ok()) {
      etcd_.revoke(lease_.id);
      return end(read.status());
    }
    earlier = std::move(read).value();
  }
  log_->info("head: now serving the job (" + options_.text + "), with a lease of " +
             describe_duration(lease_.ttl) + " in etcd");
  events_.elected(std::move(earlier));
}

// ---- the lease

bool EtcdStore::holds() const { return loop_.now() < lease_end_; }

void EtcdStore::renew() {
  if (!is_serving()) return;
  etcd_.keep_alive(lease_.id,
                   [this, sent = loop_.now()](const Result<Etcd::Lease>& lease) { on_renewed(sent, lease); });
}

void EtcdStore::on_renewed(Time sent, const Result<Etcd::Lease>& lease) {
  if (!is_serving()) return;
  if (!holds()) return lease_over();
  if (!lease.ok()) {
    if (warned_.empty()) log_->warning("head: cannot renew its lease yet: " + lease.status().message());
    warned_ = lease.status().message();
    after(pause(), [this] { renew(); });
    return;
  }
  if (lease.value().ttl == Duration{})
    return end(Status(Code::kWorkerLost,
                      "this head has lost its lease in etcd (`head_state`); another head "
                      "may serve the job now"));
  warned_.clear();
  lease_end_ = std::max(lease_end_, sent + lease.value().ttl);
  expect_lease();
  after(std::max(sent + lease_.ttl / 4 - loop_.now(), Duration{}), [this] { renew(); });
}

void EtcdStore::expect_lease() {
  loop_.cancel(lease_timer_);
  lease_timer_ = after(lease_end_ - loop_.now(), [this] { lease_over(); });
}

void EtcdStore::lease_over() {
  if (!is_serving()) return;
  end(Status(Code::kWorkerLost, "this head has not been able to renew its lease in etcd (`head_state`) for " +
                                    describe_duration(lease_.ttl) +
                                    (warned_.empty() ? "" : " (" + warned_ + ")") +
                                    "; another head may serve the job now"));
}

void EtcdStore::end(const Status& why) {
  phase_ = Phase::kOver;
  loop_.cancel(lease_timer_);
  if (auto over = std::exchange(events_.over, nullptr)) over(why);
}

// ---- the record

// `record`: none, the job is over.
void EtcdStore::write(std::shared_ptr<const std::optional<std::string>> record, Done done) {
  if (!is_serving()) return;
  using Of = Etcd::Condition::Of;
  std::vector<Etcd::Change> changes = {{record_key_, *record}};
  if (!*record) changes.push_back({leader_key_, std::nullopt});
  etcd_.change({{Of::kCreation, leader_key_, created_}, {Of::kChange, record_key_, record_}}, changes,
               [this, record, done](const Result<Etcd::Reading>& reading) {
                 if (!is_serving()) return;
                 if (reading.ok()) return on_written(reading.value(), record, done);
                 const Status& why = reading.status();
                 if (!is_worth_another(why)) return done(why);
                 if (std::exchange(store_warned_, why.message()) != why.message())
                   log_->warning("head: cannot store its record yet: " + why.message());
                 after(pause(), [this, record, done] { write(record, done); });
               });
}

// An earlier attempt may have been executed, and its answer lost.
void EtcdStore::on_written(const Etcd::Reading& reading,
                           std::shared_ptr<const std::optional<std::string>> record, const Done& done) {
  store_warned_.clear();
  if (reading.succeeded) {
    record_ = reading.revision;
    return done({});
  }
  const auto &leader = reading.values[0], &found = reading.values[1];
  const bool removed = !*record && !leader && !found;
  if (!removed && (!leader || leader->created != created_)) {
    return end(Status(Code::kWorkerLost,
                      "this head has lost the job to another head, or its lease in etcd (`head_state`) has "
                      "ended"));
  }
  record_ = found ? found->modified : 0;
  const bool written = found ? *record == found->bytes : !*record;
  written ? done({}) : write(record, done);
}

void EtcdStore::store(const transport::HeadRecord& record, Done stored) {
  const std::vector<std::byte> bytes = write_head_record(record);
  write(std::make_shared<std::optional<std::string>>(text_of(bytes)), std::move(stored));
}

void EtcdStore::remove(Done removed) {
  write(std::make_shared<std::optional<std::string>>(),
        [this, removed = std::move(removed)](const Status& status) {
          phase_ = Phase::kOver;
          loop_.cancel(lease_timer_);
          etcd_.revoke(lease_.id);
          removed(status);
        });
}

}  // namespace dsgd

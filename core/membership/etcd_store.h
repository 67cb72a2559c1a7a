// The record of a head in etcd, and the choice of the one head that serves among several.
//
// The key PREFIX/JOB/leader belongs to the head that serves. It is created only if it is not there, with a
// lease of etcd, which the head renews. PREFIX/JOB/record is written only while the first key is still the
// one that this head has created, and only over the record that this head knows. So a head that has lost its
// lease can store nothing, and tells the workers nothing that needs the record; and a request that etcd
// executes late, after newer ones, changes nothing. The other heads stand by: they watch both keys, and each
// tries to create the first one when it is gone. The end of the job removes both.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/log.h"
#include "core/membership/etcd.h"
#include "core/membership/view_store.h"

namespace dsgd {

class EtcdStore final : public ViewStore {
 public:
  struct Options {
    EtcdAddress etcd;
    std::string text;  // `head_state`, for messages
    std::string job;
    transport::Duration lease{};
  };
  // Called on the loop, never from within start().
  struct Events {
    // Once: OK, etcd has answered; otherwise the reason why it has not, and no other event follows.
    std::function<void(const Status&)> reached;
    // Returns why a record is not of the job that this head is configured for.
    std::function<Status(const transport::HeadRecord&)> check;
    // Another head serves, at this address.
    std::function<void(const std::string& head)> standing_by;
    // Once: this head serves from now on, with the record of the one before.
    std::function<void(std::optional<transport::HeadRecord>)> elected;
    // Once, the last: OK, the job for which this head stood by has ended; otherwise this head can serve no
    // longer, and may tell the workers nothing more.
    std::function<void(const Status&)> over;
  };
  // The lease in etcd: the job's, or the shortest that etcd grants with its own defaults.
  static transport::Duration lease_in_etcd(transport::Duration lease);

  // `loop`: of the head.
  EtcdStore(transport::Loop& loop, std::unique_ptr<transport::Http> http, Options options,
            std::shared_ptr<Log> log);
  ~EtcdStore() override { close(); }
  // `address`: of this head, for the log of the others. Loop only.
  void start(std::string address, Events events);
  void close() { etcd_.close(); }  // before the loop ends; any thread

  bool holds() const override;
  // A request that fails is repeated for as long as the lease lasts. If it ends before, or if the server has
  // given the job to another head, `stored` is not called, but Events::over.
  void store(const transport::HeadRecord& record, Done stored) override;
  void remove(Done removed) override;

 private:
  enum class Phase { kLooking, kServing, kOver };

  void look();
  void on_look(const Result<Etcd::Reading>& reading);
  void on_keys(const Etcd::Reading& keys);
  Result<transport::HeadRecord> read_record(const Etcd::Value& value) const;
  void wait_for_end(int64_t revision);
  void campaign();
  void create_leader();
  void on_created(const Result<Etcd::Reading>& reading);
  void serve(const Etcd::Value& leader, const std::optional<Etcd::Value>& record);
  void renew();
  void on_renewed(transport::Time sent, const Result<Etcd::Lease>& lease);
  void expect_lease();
  void lease_over();
  bool is_serving() const { return phase_ == Phase::kServing; }
  void write(std::shared_ptr<const std::optional<std::string>> record, Done done);
  void on_written(const Etcd::Reading& reading, std::shared_ptr<const std::optional<std::string>> record,
                  const Done& done);
  void end(const Status& why);
  void look_again(const Status& why);
  transport::TimerId after(transport::Duration wait, std::function<void()> then);
  transport::Duration pause();

  transport::Loop& loop_;
  const Options options_;
  const std::shared_ptr<Log> log_;
  const std::string keys_, leader_key_, record_key_;  // keys_: the prefix of the other two
  const transport::Duration ttl_;                     // to ask for
  Etcd etcd_;
  std::string address_;
  Events events_;
  Phase phase_ = Phase::kLooking;
  size_t attempts_ = 0;                 // before the first answer
  int64_t stood_by_ = 0;                // revision of the leader that Events::standing_by has named last
  std::pair<int64_t, int64_t> seen_{};  // revisions of the leader and the record
  bool told_ = false;                   // the last watch has told of a change
  bool has_begun_ = false;              // whether the job for which this head stands by has a record
  std::string warned_;        // the last failure, of a series that was logged once; empty: there is none
  std::string store_warned_;  // as warned_, of requests to store
  Etcd::Lease lease_;
  int64_t created_ = 0;          // revision at which this head created the leader's key
  int64_t record_ = 0;           // revision of the record; 0: there is none
  transport::Time lease_end_{};  // by the count of this head, from the sending of the last renewal
  transport::TimerId lease_timer_ = 0;
  std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace dsgd

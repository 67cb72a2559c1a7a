// Holds back what the head tells its workers until the decisions behind it are durable.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "core/membership/view_store.h"

namespace dsgd {

// On the head's loop.
class Durability {
 public:
  using Done = ViewStore::Done;
  // `record` returns the present one. `store` null: nothing is stored, and all is durable at once.
  Durability(ViewStore* store, std::function<transport::HeadRecord()> record)
      : store_(store), record_(std::move(record)) {}

  bool stores() const { return store_ != nullptr; }
  bool is_storing() const { return storing_; }
  bool holds() const { return !store_ || store_->holds(); }
  // The record has changed. Changes that come while one is stored are stored together after it.
  void changed();
  // Calls `then` when all changes so far are durable; at once if they are. Calls come in the order of the
  // records. With an error, the changes cannot be stored, and nothing is stored any more.
  void when_durable(Done then);
  // Called once, before the calls of when_durable that fail.
  void on_failure(Done failed) { failed_ = std::move(failed); }
  // The job is over: removes the record once all changes so far are durable, or cannot be stored. Later
  // changes are not stored.
  void remove(Done removed);

 private:
  void store();
  void remove_now();
  void on_stored(uint64_t version, const Status& status);

  ViewStore* const store_;
  const std::function<transport::HeadRecord()> record_;
  Done failed_, removed_;
  Status failure_;
  bool storing_ = false, removing_ = false;
  bool over_ = false;  // nothing is stored any more
  uint64_t version_ = 0, stored_ = 0;
  std::deque<std::pair<uint64_t, Done>> waiting_;  // for their versions
  std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace dsgd

#include "core/membership/durability.h"

#include "core/base/while_alive.h"

namespace dsgd {

void Durability::changed() {
  if (!store_ || over_ || removed_) return;
  ++version_;
  if (!storing_) store();
}

void Durability::when_durable(Done then) {
  if (!store_ || over_ || stored_ == version_) return then(failure_);
  waiting_.emplace_back(version_, std::move(then));
}

void Durability::store() {
  storing_ = true;
  store_->store(record_(), if_alive(alive_, [this, version = version_](const Status& status) {
                  on_stored(version, status);
                }));
}

void Durability::on_stored(uint64_t version, const Status& status) {
  storing_ = false;
  if (status.ok()) {
    stored_ = version;
    if (version_ > stored_) store();
  } else {
    failure_ = status;
    over_ = true;
    if (failed_) failed_(status);
  }
  while (!waiting_.empty() && (over_ || waiting_.front().first <= stored_)) {
    const Done then = std::move(waiting_.front().second);
    waiting_.pop_front();
    then(failure_);
  }
  if (removed_ && !storing_ && !removing_) remove_now();
}

void Durability::remove(Done removed) {
  removed_ = std::move(removed);
  if (!store_) return removed_({});
  if (!storing_) remove_now();
}

void Durability::remove_now() {
  removing_ = over_ = true;
  store_->remove(if_alive(alive_, [this](const Status& status) { removed_(status); }));
}

}  // namespace dsgd

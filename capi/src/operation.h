// dsgd_op, and the table by which the completion queue finds the handles that the host already has.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <unordered_map>

#include "capi/src/handle.h"
#include "core/session/operation.h"
#include "core/session/session.h"
#include "dsgd/dsgd.h"

namespace dsgd::capi {

class OpTable {
 public:
  OpTable();

  // Starts an operation and registers its handle under one lock, so that a poll that sees the operation end
  // always finds the handle. `start` returns Result<std::shared_ptr<Operation>> and does not block.
  template <typename Start>
  Result<dsgd_op*> start(const std::shared_ptr<OpTable>& self, const std::shared_ptr<Session>& session,
                         Start&& start);
  // The handle, with one more reference; null: freed, or never the host's.
  dsgd_op* find(const Operation& operation);
  // Drops a reference; true: it was the last one, and the table has forgotten the op.
  bool forget(dsgd_op& op);

  bool forked() const;  // is this a child of the process that made the table?

 private:
  using Ops = std::unordered_map<uint64_t, dsgd_op*>;  // by Operation::id

  const pid_t process_;
  std::mutex mutex_;
  Ops ops_;
};

}  // namespace dsgd::capi

struct dsgd_op : dsgd::capi::HandleOf<dsgd_op, dsgd::capi::CountedHandle> {
  static constexpr const char* kName = "dsgd_op";
  dsgd_op(std::weak_ptr<dsgd::Session> session, std::shared_ptr<dsgd::capi::OpTable> table)
      : session(std::move(session)), table(std::move(table)) {}

  std::shared_ptr<dsgd::Operation> operation;  // set by OpTable::start, then constant
  const std::weak_ptr<dsgd::Session> session;  // weak: an op that a host forgot must not keep a session open
  const std::shared_ptr<dsgd::capi::OpTable> table;
  // The host's: of the call that began it, and of each poll that returned it; under the table's mutex.
  int references = 1;
};

namespace dsgd::capi {

template <typename Start>
Result<dsgd_op*> OpTable::start(const std::shared_ptr<OpTable>& self, const std::shared_ptr<Session>& session,
                                Start&& start) {
  std::lock_guard lock(mutex_);
  // All memory is allocated before the work begins: a call that fails has begun nothing.
  auto op = std::make_unique<dsgd_op>(session, self);
  ops_.reserve(ops_.size() + 1);
  Ops one;
  auto entry = one.extract(one.emplace(0, op.get()).first);
  DSGD_RETURN_IF_ERROR(start().into(&op->operation));
  entry.key() = op->operation->id();
  ops_.insert(std::move(entry));
  return op.release();
}

}  // namespace dsgd::capi

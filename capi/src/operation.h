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
  const pid_t process_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, dsgd_op*> ops_;  // by Operation::id
};

}  // namespace dsgd::capi

struct dsgd_op : dsgd::capi::KeptHandle {
  static constexpr uint64_t kTag = dsgd::capi::tag_of("op      ");
  static constexpr const char* kName = "dsgd_op";
  dsgd_op(std::shared_ptr<dsgd::Operation> operation, std::weak_ptr<dsgd::Session> session,
          std::shared_ptr<dsgd::capi::OpTable> table)
      : KeptHandle(kTag),
        operation(std::move(operation)),
        session(std::move(session)),
        table(std::move(table)) {}

  const std::shared_ptr<dsgd::Operation> operation;
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
  ops_.reserve(ops_.size() + 1);  // what can run out of memory does so before the work has begun
  Result<std::shared_ptr<Operation>> operation = start();
  if (!operation.ok()) return operation.status();
  const uint64_t id = operation.value()->id();
  auto op = std::make_unique<dsgd_op>(std::move(operation).value(), session, self);
  ops_.emplace(id, op.get());
  return op.release();
}

}  // namespace dsgd::capi

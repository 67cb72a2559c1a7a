// An operation as the host sees it: made and ended by the session, waited for by any number of threads. Also
// the options of a call that starts one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "core/model/step_result.h"
#include "core/objects/object.h"
#include "transport/base/status.h"
#include "transport/loop.h"

namespace dsgd {

// Options of a call that starts an operation.
struct CallOptions {
  transport::Duration timeout = {};  // 0: step_timeout
  uint32_t channel = 0;              // see core/mesh/channels.h
  void* user_data = nullptr;         // the host's; Operation::user_data gives it back
  void* stream = nullptr;            // of a collective with buffers on a device; numbered as in DLPack
  // Copies the input of a collective to host memory, in the order of its channel, and then calls the
  // argument. Null: the input is in host memory. Set by the session.
  std::function<void(std::function<void(const Status&)>)> fetch = {};

  transport::Duration timeout_or(transport::Duration other) const {
    return timeout.count() > 0 ? timeout : other;
  }
  // The setting that the operation's deadline comes from: "timeout = 500 ms", or `other`.
  std::string limit_or(const std::string& other) const {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
    return timeout.count() > 0 ? "timeout = " + std::to_string(ms) + " ms" : other;
  }
};

class Operation {
 public:
  Operation(uint64_t id, std::string name, bool is_step, void* user_data = nullptr)
      : id_(id), name_(std::move(name)), is_step_(is_step), user_data_(user_data) {}
  uint64_t id() const { return id_; }
  const std::string& name() const { return name_; }  // "step 17", "all-reduce", "dsgd_object_get"
  bool is_step() const { return is_step_; }
  void* user_data() const { return user_data_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Valid once done() is true.
  const Status& status() const { return status_; }
  const StepResult& step_result() const { return step_result_; }
  const SharedObject& object() const { return object_; }

  // On the loop; on the calling thread only where no task of the loop ends the operation.
  void end(Status status) {
    if (done()) return;  // ended before, when the session ran out of memory
    status_ = std::move(status);
    if (!status_.ok() && status_.operation().empty() && !name_.empty()) {  // the session's failure names none
      status_ = std::move(status_).with_operation(name_);
    }
    set_model_copied();
    done_.store(true, std::memory_order_release);
  }
  // Of a save of a checkpoint: the model has been copied, so it may change, or the operation has ended.
  const std::atomic<bool>& model_copied() const { return model_copied_; }
  void set_model_copied() { model_copied_.store(true, std::memory_order_release); }
  uint64_t nbytes() const { return nbytes_; }  // of the host's buffers
  void set_nbytes(uint64_t nbytes) { nbytes_ = nbytes; }
  // Says what the operation waits for, on the engine's loop; OK if there is nothing to report. Null before
  // the operation has begun.
  const std::function<Status()>& waiting() const { return waiting_; }
  void set_waiting(std::function<Status()> waiting) { waiting_ = std::move(waiting); }
  StepResult& mutable_step_result() { return step_result_; }
  void set_object(SharedObject object) { object_ = std::move(object); }
  // Ticket of a waiting dsgd_object_get; else 0.
  uint64_t ticket() const { return ticket_; }
  void set_ticket(uint64_t ticket) { ticket_ = ticket; }
  const std::atomic<bool>& done_flag() const { return done_; }

 private:
  const uint64_t id_;
  const std::string name_;
  const bool is_step_;
  void* const user_data_;
  Status status_;
  StepResult step_result_;
  SharedObject object_;  // null: the operation is not dsgd_object_get
  uint64_t nbytes_ = 0, ticket_ = 0;
  std::function<Status()> waiting_;
  std::atomic<bool> model_copied_{false}, done_{false};
};

}  // namespace dsgd

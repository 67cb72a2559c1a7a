// Errors as values. A Status is OK or says what failed, which worker is concerned and what to do; Result<T>
// is a value or a Status. Nothing in transport or core throws to its caller: exceptions of libraries are
// turned into a Status where they arise.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace dsgd {

// The codes of the C ABI (DSGD_ERR_* in dsgd.h have the same values; a test compares them). Never renumbered.
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = -1,  // an argument, key, option or size is wrong
  kState = -2,            // right call, wrong moment (step before start, ready twice)
  kClosed = -3,           // the session is closed
  kForked = -4,           // called in a child of the process that made the session
  kTimeout = -5,          // the operation's deadline passed
  kWaitTimeout = -6,      // the wait ran out; the operation goes on
  kAborted = -7,          // dsgd_abort was called, here or on a peer
  kWorkerLost = -8,       // a worker or the head died, stopped, left or is unreachable
  kMismatch = -9,         // workers disagree (signature, order of operations, sizes)
  kNotFound = -10,
  kExists = -11,        // name or id taken
  kUnauthorized = -12,  // wrong token or job
  kUnreachable = -13,   // cannot connect or resolve
  kAddressInUse = -14,
  kNoMemory = -15,
  kLimit = -16,  // a limit of the system or of dsgd is exhausted
  kIo = -17,
  kUnsupported = -18,
  kTorn = -19,  // a step failed half-way; only a new start repairs the session
  kInternal = -20,
  kDiverged = -21,     // workers or replicas hold different models
  kCorrupted = -22,    // received bytes failed their checksum
  kViewChanged = -23,  // members of the job changed during a collective
};

const char* code_name(Code code);  // "DSGD_ERR_TIMEOUT"
// Converts a number received from another process; kInternal if this version does not know it.
Code code_of(int32_t number);

class Status {
 public:
  Status() = default;
  Status(Code code, std::string message);

  bool ok() const { return detail_ == nullptr; }
  Code code() const { return detail_ ? detail_->code : Code::kOk; }
  int32_t rank() const { return detail_ ? detail_->rank : -1; }  // rank concerned, -1: none
  const std::string& host() const;
  const std::string& operation() const;
  const std::string& parameter() const;
  const std::string& message() const;  // complete in itself; repeats what the fields hold

  // Builders, for use where the error is made: return Status(...).with_rank(3, "node7");
  Status&& with_rank(int32_t rank, std::string host = {}) &&;
  Status&& with_operation(std::string operation) &&;
  Status&& with_parameter(std::string parameter) &&;

 private:
  struct Detail {
    Code code;
    int32_t rank = -1;
    std::string host, operation, parameter, message;
  };
  std::shared_ptr<Detail> detail_;  // shared: statuses are copied to many waiting operations
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: never with an OK status
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace dsgd

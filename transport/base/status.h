// Errors as values. A Status is OK or says what failed, which worker is concerned and what to do; Result<T>
// is a value or a Status. Nothing in transport or core throws to its caller, except std::bad_alloc: other
// exceptions of libraries are turned into a Status where they arise.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace dsgd {

// The codes of the C ABI. enum dsgd_status in dsgd.h has the same values and says what each means;
// capi/src/version.cc asserts that they are equal. Never renumbered.
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = -1,
  kState = -2,
  kClosed = -3,
  kForked = -4,
  kTimeout = -5,
  kWaitTimeout = -6,
  kAborted = -7,
  kWorkerLost = -8,
  kMismatch = -9,
  kNotFound = -10,
  kExists = -11,
  kUnauthorized = -12,
  kUnreachable = -13,
  kAddressInUse = -14,
  kNoMemory = -15,
  kLimit = -16,
  kIo = -17,
  kUnsupported = -18,
  kTorn = -19,
  kInternal = -20,
  kDiverged = -21,
  kCorrupted = -22,
  kViewChanged = -23,
  kNonFinite = -24,
  kEvicted = -25,
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
  Status&& with_code(Code code) &&;
  Status&& with_operation(std::string operation) &&;
  Status&& with_parameter(std::string parameter) &&;

 private:
  struct Detail {
    Code code;
    int32_t rank = -1;
    std::string host, operation, parameter, message;
  };
  Detail* own_detail();

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
  // Moves the value, if there is one, to `out`.
  template <typename U>
  [[nodiscard]] Status into(U* out) && {
    if (ok()) *out = std::move(*value_);
    return status_;
  }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace dsgd

// Leaves the function with a Status that is not OK.
#define DSGD_RETURN_IF_ERROR(expression)                                      \
  do {                                                                        \
    if (::dsgd::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#include "transport/base/status.h"

namespace dsgd {
namespace {
const std::string kEmpty;
}

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "DSGD_OK";
    case Code::kInvalidArgument:
      return "DSGD_ERR_INVALID_ARGUMENT";
    case Code::kState:
      return "DSGD_ERR_STATE";
    case Code::kClosed:
      return "DSGD_ERR_CLOSED";
    case Code::kForked:
      return "DSGD_ERR_FORKED";
    case Code::kTimeout:
      return "DSGD_ERR_TIMEOUT";
    case Code::kWaitTimeout:
      return "DSGD_ERR_WAIT_TIMEOUT";
    case Code::kAborted:
      return "DSGD_ERR_ABORTED";
    case Code::kWorkerLost:
      return "DSGD_ERR_WORKER_LOST";
    case Code::kMismatch:
      return "DSGD_ERR_MISMATCH";
    case Code::kNotFound:
      return "DSGD_ERR_NOT_FOUND";
    case Code::kExists:
      return "DSGD_ERR_EXISTS";
    case Code::kUnauthorized:
      return "DSGD_ERR_UNAUTHORIZED";
    case Code::kUnreachable:
      return "DSGD_ERR_UNREACHABLE";
    case Code::kAddressInUse:
      return "DSGD_ERR_ADDRESS_IN_USE";
    case Code::kNoMemory:
      return "DSGD_ERR_NO_MEMORY";
    case Code::kLimit:
      return "DSGD_ERR_LIMIT";
    case Code::kIo:
      return "DSGD_ERR_IO";
    case Code::kUnsupported:
      return "DSGD_ERR_UNSUPPORTED";
    case Code::kTorn:
      return "DSGD_ERR_TORN";
    case Code::kInternal:
      return "DSGD_ERR_INTERNAL";
    case Code::kDiverged:
      return "DSGD_ERR_DIVERGED";
    case Code::kCorrupted:
      return "DSGD_ERR_CORRUPTED";
    case Code::kViewChanged:
      return "DSGD_ERR_VIEW_CHANGED";
    case Code::kNonFinite:
      return "DSGD_ERR_NON_FINITE";
    case Code::kEvicted:
      return "DSGD_ERR_EVICTED";
  }
  return "DSGD_ERR_UNKNOWN";
}

Code code_of(int32_t number) {
  const bool known = number <= 0 && number >= static_cast<int32_t>(Code::kEvicted);
  return known ? static_cast<Code>(number) : Code::kInternal;
}

Status::Status(Code code, std::string message) : detail_(std::make_shared<Detail>()) {
  detail_->code = code;
  detail_->message = std::move(message);
}
const std::string& Status::host() const { return detail_ ? detail_->host : kEmpty; }
const std::string& Status::operation() const { return detail_ ? detail_->operation : kEmpty; }
const std::string& Status::parameter() const { return detail_ ? detail_->parameter : kEmpty; }
const std::string& Status::message() const { return detail_ ? detail_->message : kEmpty; }

// Returns the detail for a builder to write: a copy if other statuses share it; null for OK.
Status::Detail* Status::own_detail() {
  if (detail_.use_count() > 1) detail_ = std::make_shared<Detail>(*detail_);
  return detail_.get();
}
Status&& Status::with_rank(int32_t rank, std::string host) && {
  if (Detail* detail = own_detail()) {
    detail->rank = rank;
    detail->host = std::move(host);
  }
  return std::move(*this);
}
Status&& Status::with_code(Code code) && {
  if (Detail* detail = own_detail()) detail->code = code;
  return std::move(*this);
}
Status&& Status::with_operation(std::string operation) && {
  if (Detail* detail = own_detail()) detail->operation = std::move(operation);
  return std::move(*this);
}
Status&& Status::with_parameter(std::string parameter) && {
  if (Detail* detail = own_detail()) detail->parameter = std::move(parameter);
  return std::move(*this);
}

}  // namespace dsgd

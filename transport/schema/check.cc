#include "transport/schema/check.h"

#include <string_view>

#include "transport/base/utf8.h"

namespace dsgd::transport {

std::string printable_text(std::string text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = std::string_view(text).substr(i);
    const size_t bytes = character_bytes(rest), control = text[i] == '\n' ? 0 : control_bytes(rest);
    if (bytes == 0 || control > 0) {
      text.replace(i, std::max<size_t>(bytes, 1), 1, '?');
    } else {
      i += bytes - 1;
    }
  }
  return text;
}

Status malformed(const std::string& what) { return {Code::kIo, "malformed message: " + what}; }

void Check::fail(const std::string& what) {
  if (status_.ok()) status_ = malformed(what);
}

void Check::text(capnp::Text::Reader from, std::string* to, const char* field, size_t limit) {
  if (!ok() || !length(from.size(), limit, field, "bytes")) return;
  to->assign(from.cStr(), from.size());
}

void Check::job_nonce(capnp::Data::Reader from, std::string* to) {
  if (!ok() || !length(from.size(), kMaxJobNonceBytes, "job nonce", "bytes")) return;
  to->assign(reinterpret_cast<const char*>(from.begin()), from.size());
}

bool Check::length(size_t n, size_t limit, const char* field, const char* unit) {
  if (n > limit) {
    fail(std::string(field) + " has " + std::to_string(n) + " " + unit + ", more than the " +
         std::to_string(limit) + " allowed");
  }
  return ok();
}

void Check::status(schema::Status::Reader from, Status* to) {
  const int32_t code = from.getCode();
  if (code == 0) {
    *to = Status();
    return;
  }
  if (code > 0) return fail("status code " + std::to_string(code) + " is positive");
  std::string host, operation, parameter, message;
  text(from.getHost(), &host, "host");
  text(from.getOperation(), &operation, "operation");
  text(from.getParameter(), &parameter, "parameter");
  text(from.getMessage(), &message, "status message", kMaxTextBytes);
  *to = Status(code_of(code), printable_text(std::move(message)))
            .with_rank(from.getRank(), printable_text(std::move(host)))
            .with_operation(printable_text(std::move(operation)))
            .with_parameter(printable_text(std::move(parameter)));
}

}  // namespace dsgd::transport

#include "transport/schema/field_reader.h"

#include <algorithm>
#include <string_view>
#include <utility>

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

void FieldReader::fail(const std::string& what) {
  if (status_.ok()) status_ = malformed(what);
}

bool FieldReader::length(size_t n, size_t limit, const char* field, const char* unit) {
  if (n > limit) {
    fail(std::string(field) + " has " + std::to_string(n) + " " + unit + ", more than the " +
         std::to_string(limit) + " allowed");
  }
  return ok();
}

void FieldReader::read(capnp::Text::Reader from, std::string* to, const char* field, size_t limit) {
  if (ok() && length(from.size(), limit, field, "bytes")) to->assign(from.cStr(), from.size());
}

void FieldReader::read(capnp::Data::Reader from, std::string* to, const char* field, size_t limit) {
  if (ok() && length(from.size(), limit, field, "bytes")) to->assign(from.begin(), from.end());
}

void FieldReader::read(capnp::Data::Reader from, std::vector<uint8_t>* to, const char* field, size_t limit) {
  if (ok() && length(from.size(), limit, field, "bytes")) to->assign(from.begin(), from.end());
}

void FieldReader::read(schema::Status::Reader from, Status* to) {
  const int32_t code = from.getCode();
  if (code == 0) {
    *to = Status();
    return;
  }
  if (code > 0) return fail("status code " + std::to_string(code) + " is positive");
  std::string host, operation, parameter, message;
  read(from.getHost(), &host, "host");
  read(from.getOperation(), &operation, "operation");
  read(from.getParameter(), &parameter, "parameter");
  read(from.getMessage(), &message, "status message", kMaxTextBytes);
  *to = Status(code_of(code), printable_text(std::move(message)))
            .with_rank(from.getRank(), printable_text(std::move(host)))
            .with_operation(printable_text(std::move(operation)))
            .with_parameter(printable_text(std::move(parameter)));
}

}  // namespace dsgd::transport

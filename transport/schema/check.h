// Reads the fields of untrusted Cap'n Proto input and keeps the first error, so that a message is read one
// field a line. Included by the codec only.
#pragma once

#include <capnp/blob.h>
#include <kj/exception.h>

#include <algorithm>
#include <string>
#include <utility>

#include "transport/base/status.h"
#include "transport/schema/codec.h"
#include "wire.capnp.h"  // generated

namespace dsgd::transport {

Status malformed(const std::string& what);
// Makes text of another process safe for messages and logs: replaces invalid UTF-8, and control characters
// except the newline, by '?'.
std::string printable_text(std::string text);

class Check {
 public:
  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  void fail(const std::string& what);

  void text(capnp::Text::Reader from, std::string* to, const char* field, size_t limit = kMaxNameBytes);
  // Reads a field whose size must be that of `to`.
  template <typename Bytes>
  void fixed(capnp::Data::Reader from, Bytes* to, const char* field) {
    if (!ok()) return;
    if (from.size() != to->size()) {
      return fail(std::string(field) + " has " + std::to_string(from.size()) + " bytes instead of " +
                  std::to_string(to->size()));
    }
    std::copy(from.begin(), from.end(), to->begin());
  }
  template <typename List, typename Numbers>
  void numbers(const List& from, Numbers* to, size_t limit, const char* field) {
    if (!ok() || !length(from.size(), limit, field, "entries")) return;
    to->resize(from.size());
    for (unsigned i = 0; i < from.size(); ++i) (*to)[i] = from[i];
  }
  void job_nonce(capnp::Data::Reader from, std::string* to);
  bool length(size_t n, size_t limit, const char* field, const char* unit);
  void status(schema::Status::Reader from, Status* to);

 private:
  Status status_;
};

// Runs a reader; what the library throws on invalid data becomes a Status.
template <typename C = Check, typename F>
Status guarded(F&& body) {
  C check;
  try {
    body(check);
  } catch (const kj::Exception& exception) {
    return malformed(exception.getDescription().cStr());
  }
  return check.status();
}

// As guarded(), for a reader that fills a T.
template <typename T, typename C = Check, typename F>
Result<T> guarded_result(F&& body) {
  T to{};
  Status status = guarded<C>([&](C& check) { body(check, to); });
  if (!status.ok()) return status;
  return to;
}

}  // namespace dsgd::transport

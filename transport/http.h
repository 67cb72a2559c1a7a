// HTTP requests to an outside store. One implementation uses libcurl (transport/uv); tests answer by hand.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "transport/base/status.h"
#include "transport/loop.h"

namespace dsgd::transport {

struct HttpRequest {
  std::string server, path;  // "HOST:PORT", "/v3/..."
  std::string body;          // of a POST, JSON
  Duration timeout{};        // of everything, looking up the host's name, too
  // For an answer without an end: called on a thread of its own with all bytes that have arrived so far. If
  // it returns true, the request ends, and these bytes are its answer.
  std::function<bool(std::string_view)> enough = nullptr;
};

struct HttpAnswer {
  int status = 0;
  std::string body;
};

class Http {
 public:
  virtual ~Http() = default;  // ends the requests under way; their `done` is not called
  // Sends a request, beside those under way. `done` is called once, on a thread of its own, and must not
  // block. Errors: kUnreachable, kUnauthorized (one side refuses the other's certificate, or the server does
  // not use TLS), kTimeout, kIo (the answer is too long), kInvalidArgument, kNoMemory, kUnsupported.
  virtual void post(HttpRequest request, std::function<void(Result<HttpAnswer>)> done) = 0;
};

}  // namespace dsgd::transport

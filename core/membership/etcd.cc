#include "core/membership/etcd.h"

#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

#include "core/base/address.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/base/while_alive.h"
#include "transport/base/base64.h"

namespace dsgd {
namespace {

using nlohmann::json;
using transport::Duration;
using transport::HttpAnswer;

constexpr std::string_view kScheme = "etcd://", kTlsScheme = "etcds://";

// Returns null if there is no such member.
const json& member_of(const json& object, const char* name) {
  static const json kNone;
  if (!object.is_object()) return kNone;
  const auto it = object.find(name);
  return it == object.end() ? kNone : *it;
}

// The gateway writes 64-bit numbers as text, and leaves out those that are 0.
std::optional<int64_t> number_of(const json& value) {
  if (value.is_null()) return 0;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  int64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<std::string> bytes_of_field(const json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? from_base64(value.get_ref<const std::string&>()) : std::nullopt;
}

std::optional<Etcd::Lease> lease_of(const json& answer) {
  const auto id = number_of(member_of(answer, "ID")), ttl = number_of(member_of(answer, "TTL"));
  constexpr int64_t kLongest = 5'000'000'000;  // seconds; so that now + ttl fits in 63 bits of nanoseconds
  if (!id || *id == 0 || !ttl || *ttl > kLongest) return std::nullopt;
  return Etcd::Lease{*id, std::chrono::seconds(std::max<int64_t>(*ttl, 0))};
}

// Reads the result of a range: one key or none.
bool read_range(const json& answer, std::vector<std::optional<Etcd::Value>>* values) {
  const json& found = member_of(answer, "kvs");
  if (found.is_null() || (found.is_array() && found.empty())) {
    values->emplace_back();
    return answer.is_object();
  }
  if (!found.is_array()) return false;
  const auto bytes = bytes_of_field(member_of(found[0], "value"));
  const auto created = number_of(member_of(found[0], "create_revision")),
             modified = number_of(member_of(found[0], "mod_revision")),
             lease = number_of(member_of(found[0], "lease"));
  if (!bytes || !created || *created == 0 || !modified || *modified < *created || !lease) return false;
  values->push_back(Etcd::Value{*bytes, *created, *modified, *lease});
  return true;
}

std::optional<int64_t> revision_of(const json& answer) {
  const auto revision = number_of(member_of(member_of(answer, "header"), "revision"));
  return revision && *revision > 0 ? revision : std::nullopt;
}

std::optional<Etcd::Reading> reading_of(const json& answer) {
  Etcd::Reading reading;
  const auto revision = revision_of(answer);
  const json &succeeded = member_of(answer, "succeeded"), &responses = member_of(answer, "responses");
  if (!revision || !(succeeded.is_null() || succeeded.is_boolean())) return std::nullopt;
  if (!(responses.is_null() || responses.is_array())) return std::nullopt;
  reading.revision = *revision;
  reading.succeeded = succeeded.is_boolean() && succeeded.get<bool>();
  for (const json& response : responses) {
    const json& range = member_of(response, "response_range");
    if (!range.is_null() && !read_range(range, &reading.values)) return std::nullopt;
  }
  return reading;
}

json put_of(const std::string& key, const std::string& value, int64_t lease = 0) {
  json put = {{"key", to_base64(key)}, {"value", to_base64(value)}};
  if (lease) put["lease"] = std::to_string(lease);
  return {{"request_put", put}};
}

json removal_of(const std::string& key) { return {{"request_delete_range", {{"key", to_base64(key)}}}}; }
json range_of(const std::string& key) { return {{"request_range", {{"key", to_base64(key)}}}}; }

json compare_of(const Etcd::Condition& condition) {
  const bool creation = condition.of == Etcd::Condition::Of::kCreation;
  return {{"key", to_base64(condition.key)},
          {"target", creation ? "CREATE" : "MOD"},
          {"result", "EQUAL"},
          {creation ? "create_revision" : "mod_revision", std::to_string(condition.revision)}};
}

Status invalid_address(const std::string& text, const std::string& why) {
  return Status(Code::kInvalidArgument, "`head_state` = '" + text + "' " + why).with_parameter("head_state");
}

// Returns whether a server refuses a request for good. The codes are those of gRPC. "Resource exhausted" is
// worth another attempt if etcd says it, for overload or a full store; gRPC says it for a request that is too
// large.
bool refuses(int64_t code, std::string_view text) {
  switch (code) {
    case 3:   // invalid argument
    case 5:   // not found
    case 7:   // permission denied
    case 9:   // failed precondition
    case 11:  // out of range
    case 12:  // unimplemented
    case 16:  // unauthenticated
      return true;
    case 8:  // resource exhausted
      return !text.starts_with("etcdserver:");
    default:
      return false;
  }
}

Status failure_of(const std::string& server, const HttpAnswer& answer) {
  // {"error": TEXT, "code": N}; since etcd 3.5 perhaps {"message": TEXT, "code": N}; in a stream
  // {"error": {"message": TEXT, "grpc_code": N}}.
  const json body = parse_json(answer.body);
  const json& error = member_of(body, "error");
  const json& holder = error.is_object() ? error : body;
  const json& text = error.is_string() ? error : member_of(holder, "message");
  const json& grpc_code = member_of(holder, "grpc_code");
  const auto code = number_of(grpc_code.is_null() ? member_of(holder, "code") : grpc_code);
  if (!text.is_string() || !code) {
    return Status(Code::kMismatch, "the server at " + server + " sent an answer that is not etcd's (HTTP " +
                                       std::to_string(answer.status) + ")");
  }
  const auto& said = text.get_ref<const std::string&>();
  const std::string why = "etcd at " + server + " says: " + printable(said);
  if (!refuses(*code, said)) return Status(Code::kUnreachable, why);
  return Status(*code == 5 ? Code::kNotFound : Code::kState, why);
}

bool is_answered(const Result<HttpAnswer>& answer) { return answer.ok() && answer.value().status == 200; }

Result<std::string> text_of_answer(const std::string& server, const Result<HttpAnswer>& answer) {
  if (is_answered(answer)) return answer.value().body;
  if (answer.ok()) return failure_of(server, answer.value());
  const Code code = answer.status().code();
  return Status(code == Code::kTimeout || code == Code::kUnauthorized ? code : Code::kUnreachable,
                "a request to etcd at " + server + " failed: " + answer.status().message());
}

}  // namespace

bool is_etcd(const std::string& text) {
  return text.starts_with("etcd:") || text.starts_with("etcds:") || text.find("://") != text.npos;
}

Result<EtcdAddress> parse_etcd(const std::string& text) {
  EtcdAddress address;
  address.tls = text.starts_with(kTlsScheme);
  if (!address.tls && !text.starts_with(kScheme))
    return invalid_address(text,
                           "is neither a path nor etcd://HOST:PORT,HOST:PORT/PREFIX (etcds:// uses TLS)");
  std::string_view rest = std::string_view(text).substr((address.tls ? kTlsScheme : kScheme).size());
  const size_t slash = rest.find('/');
  if (slash != rest.npos) address.prefix = rest.substr(slash + 1);
  while (address.prefix.ends_with('/')) address.prefix.pop_back();
  if (address.prefix.empty()) address.prefix = "dsgd";
  rest = rest.substr(0, slash);
  for (;;) {
    const size_t comma = rest.find(',');
    const std::string_view server = rest.substr(0, comma);
    if (const std::string fault = server_fault(server); !fault.empty())
      return invalid_address(text, "has a server '" + std::string(server) + "' that " + fault);
    address.servers.emplace_back(server);
    if (comma == rest.npos) return address;
    rest.remove_prefix(comma + 1);
  }
}

Etcd::Etcd(transport::Loop& loop, std::unique_ptr<transport::Http> http, std::vector<std::string> servers,
           Duration timeout)
    : poster_(std::make_shared<transport::Poster>(loop)),
      servers_(std::move(servers)),
      timeout_(timeout),
      http_(std::move(http)) {}

void Etcd::note_failure(uint64_t attempt) {
  if (attempt == attempt_) ++attempt_;
}

void Etcd::send(const std::string& path, std::string body, Duration timeout,
                std::function<bool(std::string_view)> enough, OnAnswer done) {
  const bool stream = enough != nullptr;
  http_->post({server(attempt_), "/v3/" + path, std::move(body), timeout, std::move(enough)},
              [this, poster = poster_, alive = std::weak_ptr(alive_), attempt = attempt_, stream,
               done = std::move(done)](Result<HttpAnswer> answer) {
                poster->post(if_alive(alive, [this, attempt, stream, answer = std::move(answer), done] {
                  const bool ended = stream && answer.status().code() == Code::kTimeout;
                  if (!ended && !is_answered(answer)) note_failure(attempt);
                  done(text_of_answer(server(attempt), answer), attempt);
                }));
              });
}

// Returns a callback that passes the answer, parsed by `read`, to `done`, or an error if it is invalid.
template <typename T, typename Read>
Etcd::OnAnswer Etcd::reads(const char* question, Done<T> done, Read read) {
  return [this, question, done = std::move(done), read](Result<std::string> answer, uint64_t attempt) {
    if (!answer.ok()) return done(answer.status());
    std::optional<T> value = read(parse_json(answer.value()));
    if (value) return done(std::move(*value));
    note_failure(attempt);
    done(Status(Code::kMismatch, "the server at " + server(attempt) + " sent an invalid answer to " +
                                     question + "; it must be etcd 3.4 or later (`head_state`)"));
  };
}

void Etcd::grant(Duration ttl, Done<Lease> done) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(ttl).count();
  send("lease/grant", json{{"TTL", std::to_string(seconds)}}.dump(), timeout_, nullptr,
       reads<Lease>("the request for a lease", std::move(done), [](const json& answer) {
         const auto lease = lease_of(answer);
         return lease && lease->ttl > Duration{} ? lease : std::nullopt;
       }));
}

void Etcd::keep_alive(int64_t lease, Done<Lease> done) {
  send("lease/keepalive", json{{"ID", std::to_string(lease)}}.dump(), timeout_, nullptr,
       reads<Lease>("the renewal of a lease", std::move(done),
                    [](const json& answer) { return lease_of(member_of(answer, "result")); }));
}

void Etcd::revoke(int64_t lease) {
  send("lease/revoke", json{{"ID", std::to_string(lease)}}.dump(), timeout_, nullptr,
       [](const Result<std::string>&, uint64_t) {});
}

// The answer must have the values of `values` keys if the conditions hold, else of `values_if_not`.
void Etcd::transact(std::string body, size_t values, size_t values_if_not, Done<Reading> done) {
  send("kv/txn", std::move(body), timeout_, nullptr,
       reads<Reading>("a transaction", std::move(done), [values, values_if_not](const json& answer) {
         std::optional<Reading> reading = reading_of(answer);
         const bool right =
             reading && reading->values.size() == (reading->succeeded ? values : values_if_not);
         return right ? reading : std::nullopt;
       }));
}

void Etcd::read(const std::vector<std::string>& keys, Done<Reading> done) {
  json ranges = json::array();
  for (const std::string& key : keys) ranges.push_back(range_of(key));
  // Without conditions, a transaction cannot fail.
  transact(json{{"success", ranges}}.dump(), keys.size(), keys.size(), std::move(done));
}

void Etcd::create(const std::string& key, const std::string& value, int64_t lease, const std::string& other,
                  Done<Reading> done) {
  const json body = {{"compare", json::array({compare_of({Condition::Of::kCreation, key, 0})})},
                     {"success", json::array({put_of(key, value, lease), range_of(key), range_of(other)})},
                     {"failure", json::array({range_of(key), range_of(other)})}};
  transact(body.dump(), 2, 2, std::move(done));
}

void Etcd::change(const std::vector<Condition>& conditions, const std::vector<Change>& changes,
                  Done<Reading> done) {
  json compare = json::array(), success = json::array(), failure = json::array();
  for (const Condition& one : conditions) {
    compare.push_back(compare_of(one));
    failure.push_back(range_of(one.key));
  }
  for (const Change& one : changes)
    success.push_back(one.value ? put_of(one.key, *one.value) : removal_of(one.key));
  transact(json{{"compare", compare}, {"success", success}, {"failure", failure}}.dump(), 0,
           conditions.size(), std::move(done));
}

void Etcd::watch(const std::string& prefix, int64_t revision, Duration timeout,
                 std::function<void(const Status&)> done) {
  // The first line says that the watch has begun.
  const auto enough = [](std::string_view text) {
    const size_t first = text.find('\n');
    return first != text.npos && text.find('\n', first + 1) != text.npos;
  };
  std::string end = prefix;
  ++end.back();
  const json body = {{"create_request",
                      {{"key", to_base64(prefix)},
                       {"range_end", to_base64(end)},
                       {"start_revision", std::to_string(revision)}}}};
  send("watch", body.dump(), timeout, enough,
       [done = std::move(done)](const Result<std::string>& answer, uint64_t) { done(answer.status()); });
}

}  // namespace dsgd

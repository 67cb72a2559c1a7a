// A client of etcd 3.4 or later, through its JSON gateway.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/http.h"
#include "transport/poster.h"

namespace dsgd {

// "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]", or "etcds://..." for TLS.
struct EtcdAddress {
  std::vector<std::string> servers;
  std::string prefix;  // "dsgd" where the text gives none
  bool tls = false;
};
// Whether `head_state` is a URL, not a path; also with another scheme than etcd, which parse_etcd() refuses.
bool is_etcd(const std::string& text);
Result<EtcdAddress> parse_etcd(const std::string& text);

// Each request goes to one server. After one that fails, the next request goes to the next server; callers
// repeat requests. kUnreachable, kTimeout, kUnauthorized (TLS: one side refuses the other's certificate) and
// kMismatch (the answer is not etcd's) are worth another attempt; with other errors the server has refused
// the request.
//
// On one loop. Callbacks come from a task of the loop, and not after the destruction.
class Etcd {
 public:
  template <typename T>
  using Done = std::function<void(Result<T>)>;
  struct Lease {
    int64_t id = 0;
    transport::Duration ttl{};  // 0: it is over
  };
  struct Value {
    std::string bytes;
    int64_t created = 0;   // revision at which the key was created
    int64_t modified = 0;  // revision at which it has changed last
    int64_t lease = 0;
  };
  struct Reading {
    bool succeeded = false;                    // the condition of the request held
    int64_t revision = 0;                      // of the whole store
    std::vector<std::optional<Value>> values;  // of the keys that the request reads
  };

  // `timeout`: of each request.
  Etcd(transport::Loop& loop, std::unique_ptr<transport::Http> http, std::vector<std::string> servers,
       transport::Duration timeout);
  ~Etcd() { close(); }
  void close() { poster_->close(); }  // no callbacks follow; call before the loop ends; any thread

  size_t servers() const { return servers_.size(); }

  void grant(transport::Duration ttl, Done<Lease> done);
  void keep_alive(int64_t lease, Done<Lease> done);
  void revoke(int64_t lease);  // best effort: a lease that is not revoked expires
  void read(const std::vector<std::string>& keys, Done<Reading> done);
  // Creates `key`, which ends with the lease, if it does not exist. Reads `key`, and then `other`.
  void create(const std::string& key, const std::string& value, int64_t lease, const std::string& other,
              Done<Reading> done);
  struct Change {
    std::string key;
    std::optional<std::string> value;  // none: remove it
  };
  // A key and the revision at which it was created, or has changed last; 0: the key does not exist.
  struct Condition {
    enum class Of { kCreation, kChange } of;
    std::string key;
    int64_t revision = 0;
  };
  // Makes all changes if all conditions hold; otherwise none, and reads the keys of the conditions.
  void change(const std::vector<Condition>& conditions, const std::vector<Change>& changes,
              Done<Reading> done);
  // Calls `done` with OK when a key that begins with `prefix` changes at `revision` or later, else with an
  // error. It may also be OK without a change, so the caller must read the keys.
  void watch(const std::string& prefix, int64_t revision, transport::Duration timeout,
             std::function<void(const Status&)> done);

 private:
  using OnAnswer = std::function<void(Result<std::string>, uint64_t attempt)>;
  void send(const std::string& path, std::string body, transport::Duration timeout,
            std::function<bool(std::string_view)> enough, OnAnswer done);
  template <typename T, typename Read>
  OnAnswer reads(const char* question, Done<T> done, Read read);
  void transact(std::string body, size_t values, size_t values_if_not, Done<Reading> done);
  const std::string& server(uint64_t attempt) const { return servers_[attempt % servers_.size()]; }
  void note_failure(uint64_t attempt);

  const std::shared_ptr<transport::Poster> poster_;
  const std::vector<std::string> servers_;
  const transport::Duration timeout_;
  uint64_t attempt_ = 0;  // index of the server for the next request; incremented after a failure
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
  const std::unique_ptr<transport::Http> http_;
};

}  // namespace dsgd

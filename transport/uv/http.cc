#include "transport/uv/http.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "transport/uv/curl.h"
#include "transport/uv/fd.h"
#include "transport/uv/guard.h"
#include "transport/uv/resolve.h"
#include "transport/uv/uv_loop.h"

namespace dsgd::transport::uv {

namespace {

constexpr size_t kMaxAnswerBytes = 4 << 20;          // of etcd: 1.5 MiB in Base64, if its limit is not raised
constexpr Duration kIdle = std::chrono::minutes(1);  // multi_wakeup() ends the wait earlier
constexpr Duration kNameAge = std::chrono::minutes(1);  // after which a name is looked up again
// A folder without certificates. By default libcurl may also trust the CAs of the system.
constexpr const char* kNoCaFolder = "/dev";

long milliseconds_until(Time until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - boot_time()).count();
  return static_cast<long>(std::max<int64_t>(left, 1));
}

// One request. It stays at its address, which the library keeps.
struct HttpCall {
  HttpRequest request;
  std::function<void(Result<HttpAnswer>)> done;
  Time deadline = boot_time() + request.timeout;
  Curl::List* addresses = nullptr;
  std::string body = {};
  bool ended_early = false, too_long = false;
  char error[Curl::kErrorBytes] = "";
};

size_t take_piece(char* data, size_t size, size_t count, void* context) {
  auto& call = *static_cast<HttpCall*>(context);
  const size_t n = size * count, end_request = n + 1;  // any other result than n ends the request
  if (n > kMaxAnswerBytes - call.body.size()) {
    call.too_long = true;
    return end_request;
  }
  try {
    call.body.append(data, n);
  } catch (const std::bad_alloc&) {  // must not reach the library
    call.too_long = true;
    return end_request;
  }
  call.ended_early = call.request.enough && call.request.enough(call.body);
  return call.ended_early ? end_request : n;
}

// As all descriptors of dsgd: not inherited by programs that the host starts, and none of the standard
// streams.
int open_socket(void*, int, Curl::Socket* wanted) {
  return above_standard_streams(
             [wanted] { return ::socket(wanted->family, wanted->type | SOCK_CLOEXEC, wanted->protocol); })
      .release();
}

// The addresses of a server. dsgd looks them up itself: libcurl waits at the end of a request until its own
// look-up has ended, however long that takes.
struct HttpHost {
  std::vector<SocketAddress> addresses;
  Time looked_up{};
  bool is_asked = false;
  std::vector<std::unique_ptr<HttpCall>> waiting;  // for the first addresses
};

class CurlHttp final : public Http {
 public:
  CurlHttp(const Curl& curl, void* multi, std::optional<TlsFiles> tls)
      : curl_(curl),
        multi_(multi),
        tls_(std::move(tls)),
        headers_(curl.slist_append(nullptr, "Content-Type: application/json")) {
    anchor_->http = this;
  }
  Status start() {
    return start_thread("dsgd-http", [this] { run(); }).into(&thread_);
  }
  ~CurlHttp() override {
    {
      std::lock_guard lock(anchor_->mutex);
      anchor_->http = nullptr;
    }
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    curl_.multi_wakeup(multi_);
    if (thread_.joinable()) thread_.join();
    for (const auto& [easy, call] : calls_) end_handle(easy, *call);
    curl_.multi_cleanup(multi_);
    curl_.slist_free_all(headers_);
  }

  void post(HttpRequest request, std::function<void(Result<HttpAnswer>)> done) override {
    {
      std::lock_guard lock(mutex_);
      posted_.push_back(std::unique_ptr<HttpCall>(new HttpCall{std::move(request), std::move(done)}));
    }
    curl_.multi_wakeup(multi_);
  }

 private:
  struct Anchor {  // outlives this object: threads that look up names deliver to it
    std::mutex mutex;
    CurlHttp* http;  // null once it is being destroyed
  };

  void run() {
    while (take_posted()) {
      int running = 0, left = 0;
      curl_.multi_perform(multi_, &running);
      while (const Curl::Message* message = curl_.multi_info_read(multi_, &left))
        if (message->kind == Curl::kDone) end_call(message->easy, message->data.result);
      const Time wake = end_late_calls();
      curl_.multi_poll(multi_, nullptr, 0, static_cast<int>(milliseconds_until(wake)), nullptr);
    }
  }

  // False: the object is being destroyed.
  bool take_posted() {
    std::vector<std::unique_ptr<HttpCall>> posted;
    std::map<std::string, Addresses> resolved;
    {
      std::lock_guard lock(mutex_);
      if (over_) return false;
      posted.swap(posted_);
      resolved.swap(resolved_);
    }
    for (const auto& [server, addresses] : resolved) on_resolved(server, addresses);
    for (auto& call : posted) start_call(std::move(call));
    return true;
  }

  void start_call(std::unique_ptr<HttpCall> call) {
    HttpHost& host = hosts_[call->request.server];
    if (host.addresses.empty() || boot_time() >= host.looked_up + kNameAge)
      look_up(call->request.server, host);
    if (!host.addresses.empty()) return send_call(std::move(call), host.addresses);
    host.waiting.push_back(std::move(call));
  }

  void look_up(const std::string& server, HttpHost& host) {
    if (host.is_asked) return;
    host.is_asked = true;
    const auto deliver = [anchor = anchor_, server](const Addresses& addresses) {
      std::lock_guard lock(anchor->mutex);
      if (anchor->http) anchor->http->note_resolved(server, addresses);
    };
    auto parsed = parse_address(server);
    if (!parsed.ok()) return deliver(parsed.status());
    find_addresses(parsed.value(), false, deliver);
  }

  void note_resolved(const std::string& server, const Addresses& addresses) {
    {
      std::lock_guard lock(mutex_);
      resolved_.insert_or_assign(server, addresses);
    }
    curl_.multi_wakeup(multi_);
  }

  // If a name cannot be found any more, its last addresses serve on.
  void on_resolved(const std::string& server, const Addresses& addresses) {
    HttpHost& host = hosts_[server];
    host.is_asked = false;
    host.looked_up = boot_time();
    if (addresses.ok()) host.addresses = addresses.value();
    for (auto& call : std::exchange(host.waiting, {}))
      addresses.ok() ? send_call(std::move(call), host.addresses) : call->done(addresses.status());
  }

  // Ends the requests that wait for the address of their host past their deadline. Returns the next
  // deadline.
  Time end_late_calls() {
    Time next = boot_time() + kIdle;
    for (auto& [server, host] : hosts_) {
      for (auto& call : host.waiting) {
        if (boot_time() < call->deadline) {
          next = std::min(next, call->deadline);
          continue;
        }
        call->done(Status(Code::kTimeout, "no name server has answered in time for its host"));
        call.reset();
      }
      std::erase(host.waiting, nullptr);
    }
    return next;
  }

  void send_call(std::unique_ptr<HttpCall> call, const std::vector<SocketAddress>& addresses) {
    void* easy = curl_.easy_init();
    if (!easy) return call->done(Status(Code::kNoMemory, "no memory for an HTTP request"));
    if (const int result = tls_ ? set_tls(easy) : Curl::kOk; result != Curl::kOk) {
      curl_.easy_cleanup(easy);
      return call->done(
          Status(Code::kUnsupported, std::string("libcurl cannot use TLS: ") + curl_.easy_strerror(result)));
    }
    const HttpRequest& request = call->request;
    if (to_text(addresses.front()) != request.server)
      call->addresses = curl_.slist_append(nullptr, resolved_text(request.server, addresses).c_str());
    curl_.easy_setopt(easy, Curl::kUrl,
                      ((tls_ ? "https://" : "http://") + request.server + request.path).c_str());
    curl_.easy_setopt(easy, Curl::kResolve, call->addresses);
    curl_.easy_setopt(easy, Curl::kPostFieldSizeLarge, static_cast<int64_t>(request.body.size()));
    curl_.easy_setopt(easy, Curl::kPostFields, request.body.c_str());
    curl_.easy_setopt(easy, Curl::kHttpHeader, headers_);
    curl_.easy_setopt(easy, Curl::kTimeoutMs, milliseconds_until(call->deadline));
    curl_.easy_setopt(easy, Curl::kNoSignal, 1L);
    curl_.easy_setopt(easy, Curl::kTcpNoDelay, 1L);
    curl_.easy_setopt(easy, Curl::kOpenSocketFunction, static_cast<Curl::OpenSocket>(open_socket));
    curl_.easy_setopt(easy, Curl::kProxy, "");  // not that of the environment
    curl_.easy_setopt(easy, Curl::kErrorBuffer, call->error);
    curl_.easy_setopt(easy, Curl::kWriteFunction, static_cast<Curl::Write>(take_piece));
    curl_.easy_setopt(easy, Curl::kWriteData, static_cast<void*>(call.get()));
    calls_.emplace(easy, std::move(call));
    curl_.multi_add_handle(multi_, easy);
  }

  // Sets the options of TLS. Returns kOk, or the first error. The library reads the files for each
  // connection. The caches are off, so that replaced files count.
  int set_tls(void* easy) const {
    int failed = Curl::kOk;
    const auto set = [&](int option, auto value, bool is_optional = false) {
      const int result = curl_.easy_setopt(easy, option, value);
      const bool is_missing = result == Curl::kNotBuiltIn || result == Curl::kUnknownOption;
      if (failed == Curl::kOk && result != Curl::kOk && !(is_optional && is_missing)) failed = result;
    };
    set(Curl::kVerifyPeer, 1L);
    set(Curl::kVerifyHost, 2L);
    set(Curl::kCaFile, tls_->ca.c_str());
    set(Curl::kCaFolder, kNoCaFolder, true);  // where it is missing, so is the folder of the system
    set(Curl::kCertificate, tls_->cert.c_str());
    set(Curl::kKey, tls_->key.c_str());
    set(Curl::kKeyPassphrase, "");  // without one, OpenSSL would ask at the terminal
    set(Curl::kTlsVersion, Curl::kTls12OrLater);
    set(Curl::kSessionCache, 0L);
    set(Curl::kCaCacheSeconds, 0L, true);  // before 7.87 there is no cache
    // A request of HTTP/2 that times out would leave its dead connection to the next one.
    set(Curl::kHttpVersion, Curl::kHttp11);
    return failed;
  }

  // "HOST:PORT:ADDRESS,ADDRESS": the library tries all of them.
  static std::string resolved_text(const std::string& server, const std::vector<SocketAddress>& addresses) {
    std::string text = server;
    for (const SocketAddress& address : addresses) {
      const std::string with_port = to_text(address);
      text += (text == server ? ':' : ',') + with_port.substr(0, with_port.rfind(':'));
    }
    return text;
  }

  void end_call(void* easy, int result) {
    long status = 0, connections = 0;
    curl_.easy_getinfo(easy, Curl::kResponseCode, &status);
    curl_.easy_getinfo(easy, Curl::kNewConnections, &connections);
    const std::unique_ptr<HttpCall> call = std::move(calls_.extract(easy).mapped());
    end_handle(easy, *call);
    // A server that has begun its answer has accepted the certificate, also on a new connection.
    call->done(answer_of(*call, result, static_cast<int>(status), connections > 0 && status == 0));
  }

  Result<HttpAnswer> answer_of(HttpCall& call, int result, int status, bool new_and_unanswered) const {
    if (result == Curl::kOk || (result == Curl::kWriteError && call.ended_early))
      return HttpAnswer{status, std::move(call.body)};
    if (call.too_long) return Status(Code::kIo, "the answer is too long");
    const std::string why = *call.error ? call.error : curl_.easy_strerror(result);
    if (result == Curl::kTimedOut) return Status(Code::kTimeout, why);
    return tls_ ? tls_failure(result, why, new_and_unanswered) : Status(Code::kUnreachable, why);
  }

  // A server may check the client's certificate after the handshake (TLS 1.3), and end the connection while
  // the request is being sent; its alert may then be lost.
  static Status tls_failure(int result, const std::string& why, bool new_and_unanswered) {
    if (result == Curl::kPeerRefused) {
      return Status(Code::kUnauthorized,
                    "the certificate of the server was refused: " + why +
                        "; check that a CA of `tls_ca` has signed it, that it is for this "
                        "host, and that it is valid now");
    }
    const bool is_break = result == Curl::kTlsFailed || result == Curl::kEmptyAnswer ||
                          result == Curl::kSendFailed || result == Curl::kReceiveFailed;
    if (!new_and_unanswered || !is_break) return Status(Code::kUnreachable, why);
    return Status(Code::kUnauthorized, "the server ended the new TLS connection: " + why +
                                           "; check that it uses TLS, that it trusts the CA that has signed "
                                           "`tls_cert`, and that `tls_cert` is valid now");
  }

  void end_handle(void* easy, const HttpCall& call) const {
    curl_.multi_remove_handle(multi_, easy);
    curl_.easy_cleanup(easy);
    curl_.slist_free_all(call.addresses);
  }

  const Curl& curl_;
  void* const multi_;
  const std::optional<TlsFiles> tls_;  // none: plain HTTP
  Curl::List* const headers_;
  // Of the thread: requests by handle, hosts by "HOST:PORT".
  std::map<void*, std::unique_ptr<HttpCall>> calls_;
  std::map<std::string, HttpHost> hosts_;
  const std::shared_ptr<Anchor> anchor_ = std::make_shared<Anchor>();
  std::mutex mutex_;  // of the rest
  bool over_ = false;
  std::vector<std::unique_ptr<HttpCall>> posted_;
  std::map<std::string, Addresses> resolved_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Http>> make_http(std::optional<TlsFiles> tls) {
  const Curl* curl = nullptr;
  DSGD_RETURN_IF_ERROR(load_curl().into(&curl));
  void* multi = nullptr;
  {
    const StandardStreams held;  // the library opens descriptors
    multi = curl->multi_init();
  }
  if (!multi) return Status(Code::kNoMemory, "no memory for HTTP");
  auto http = std::make_unique<CurlHttp>(*curl, multi, std::move(tls));
  DSGD_RETURN_IF_ERROR(http->start());
  return std::unique_ptr<Http>(std::move(http));
}

}  // namespace dsgd::transport::uv

// The functions of libcurl that HTTP needs. They are looked up at run time, as those of OpenSSL are: only a
// head that keeps its state in etcd needs the library. Its numbers and signatures never change, so the
// headers are not needed to build.
#pragma once

#include "transport/base/status.h"

namespace dsgd::transport::uv {

struct Curl {
  // A function that the library calls with a piece of the answer; a result other than size * count ends the
  // request.
  using Write = size_t (*)(char* data, size_t size, size_t count, void* context);
  struct Message {
    int kind;
    void* easy;
    union {
      void* other;
      int result;
    } data;
  };
  struct List;
  struct Socket {  // the begin of curl_sockaddr
    int family, type, protocol;
  };
  // Makes a socket; -1: it cannot.
  using OpenSocket = int (*)(void* context, int purpose, Socket* socket);

  static constexpr int kUrl = 10002, kWriteFunction = 20011, kWriteData = 10001, kPostFields = 10015,
                       kPostFieldSizeLarge = 30120, kHttpHeader = 10023, kNoSignal = 99, kTimeoutMs = 155,
                       kProxy = 10004, kResolve = 10203, kErrorBuffer = 10010, kTcpNoDelay = 121,
                       kOpenSocketFunction = 20163, kHttpVersion = 84;
  static constexpr int kVerifyPeer = 64, kVerifyHost = 81, kCaFile = 10065, kCaFolder = 10097,
                       kCertificate = 10025, kKey = 10087, kKeyPassphrase = 10026, kTlsVersion = 32,
                       kSessionCache = 150, kCaCacheSeconds = 321;
  static constexpr long kHttp11 = 2, kTls12OrLater = 6;  // values of options
  static constexpr int kResponseCode = 0x200002, kNewConnections = 0x20001a;
  static constexpr int kDone = 1;
  static constexpr int kOk = 0, kNotBuiltIn = 4, kWriteError = 23, kTimedOut = 28, kTlsFailed = 35,
                       kUnknownOption = 48, kEmptyAnswer = 52, kSendFailed = 55, kReceiveFailed = 56,
                       kPeerRefused = 60;
  static constexpr size_t kErrorBytes = 256;

  int (*global_init)(long);
  void* (*easy_init)();
  int (*easy_setopt)(void*, int, ...);
  int (*easy_getinfo)(void*, int, ...);
  const char* (*easy_strerror)(int);
  void (*easy_cleanup)(void*);
  List* (*slist_append)(List*, const char*);
  void (*slist_free_all)(List*);
  void* (*multi_init)();
  int (*multi_cleanup)(void*);
  int (*multi_add_handle)(void*, void*);
  int (*multi_remove_handle)(void*, void*);
  int (*multi_perform)(void*, int*);
  Message* (*multi_info_read)(void*, int*);
  int (*multi_poll)(void*, void*, unsigned, int, int*);
  int (*multi_wakeup)(void*);
};

// Loads the library, once in a process. Any thread.
Result<const Curl*> load_curl();

}  // namespace dsgd::transport::uv

#include "transport/uv/curl.h"

#include <utility>

#include "transport/uv/loaded_library.h"

namespace dsgd::transport::uv {

namespace {

constexpr long kNothing = 0;  // CURL_GLOBAL_NOTHING; libcurl initializes TLS whatever the flags are

Result<Curl> look_up_curl() {
  LoadedLibrary library("libcurl.so.4");
  Curl curl{};
  library.find(curl.global_init, "curl_global_init");
  library.find(curl.easy_init, "curl_easy_init");
  library.find(curl.easy_setopt, "curl_easy_setopt");
  library.find(curl.easy_getinfo, "curl_easy_getinfo");
  library.find(curl.easy_strerror, "curl_easy_strerror");
  library.find(curl.easy_cleanup, "curl_easy_cleanup");
  library.find(curl.slist_append, "curl_slist_append");
  library.find(curl.slist_free_all, "curl_slist_free_all");
  library.find(curl.multi_init, "curl_multi_init");
  library.find(curl.multi_cleanup, "curl_multi_cleanup");
  library.find(curl.multi_add_handle, "curl_multi_add_handle");
  library.find(curl.multi_remove_handle, "curl_multi_remove_handle");
  library.find(curl.multi_perform, "curl_multi_perform");
  library.find(curl.multi_info_read, "curl_multi_info_read");
  library.find(curl.multi_poll, "curl_multi_poll");
  library.find(curl.multi_wakeup, "curl_multi_wakeup");
  Status status =
      library.status("etcd needs libcurl 7.68 or later",
                     "install it (Debian's package libcurl4), or set `head_state` to the path of a file");
  if (status.ok() && curl.global_init(kNothing) != Curl::kOk)
    status = Status(Code::kUnsupported, "libcurl cannot be initialized");
  if (!status.ok()) return std::move(status).with_parameter("head_state");
  return curl;
}

}  // namespace

Result<const Curl*> load_curl() {
  static const Result<Curl>& loaded = *new Result<Curl>(look_up_curl());  // usable until the process ends
  if (!loaded.ok()) return loaded.status();
  return &loaded.value();
}

}  // namespace dsgd::transport::uv

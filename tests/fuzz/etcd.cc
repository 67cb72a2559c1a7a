// The answers of etcd to a head. An input is a list of answers, each ended by a zero byte: the first byte
// says how the request ends, the rest is the body. The head looks for the job, becomes the head that serves
// if the answers let it, stores a record and removes it. A record that it accepts is consistent.
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/membership/etcd_store.h"
#include "core/membership/head_record.h"
#include "tests/unit/membership/fakes.h"

using namespace dsgd;
using namespace dsgd::transport;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Answers each request at once, while there are answers.
class ScriptedHttp final : public Http {
 public:
  explicit ScriptedHttp(std::string_view script) : script_(script) {}
  void post(HttpRequest request, std::function<void(Result<HttpAnswer>)> done) override {
    if (script_.empty()) return;
    const std::string_view answer = script_.substr(0, script_.find('\0'));
    script_.remove_prefix(std::min(script_.size(), answer.size() + 1));
    const std::string body(answer.substr(std::min<size_t>(answer.size(), 1)));
    if (request.enough) (void)request.enough(body);
    switch (answer.empty() ? 0 : answer[0] % 4) {
      case 0:
        return done(Status(Code::kUnreachable, body));
      case 1:
        return done(HttpAnswer{503, body});
      default:
        return done(HttpAnswer{200, body});
    }
  }

 private:
  std::string_view script_;
};

void run(std::string_view script) {
  FakeLoop loop;
  EtcdStore::Options options;
  options.etcd = {{"a:1", "b:2"}, "dsgd", false};
  options.text = "etcd://a:1,b:2";
  options.job = "job";
  options.lease = 10s;
  EtcdStore store(loop, std::make_unique<ScriptedHttp>(script), std::move(options),
                  std::make_shared<Log>(LogLevel::kError, [](const LogRecord&) {}));
  EtcdStore::Events events;
  events.reached = [](const Status&) {};
  events.check = [](const HeadRecord&) { return Status(); };
  events.standing_by = [](const std::string&) {};
  events.over = [](const Status&) {};
  events.elected = [&](std::optional<HeadRecord> record) {
    if (record) {
      require(record->num_workers <= record->workers.size());
      const auto again = read_head_record(write_head_record(*record), "record", "");
      require(again.ok());
    }
    store.store(HeadRecord{}, [&](const Status&) { store.remove([](const Status&) {}); });
  };
  store.start("a:7700", std::move(events));
  for (int i = 0; i < 40; ++i) loop.advance(5s);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string script(reinterpret_cast<const char*>(data), size);  // exact, so that an over-read is seen
  run(script);
  return 0;
}

// A name server that does not answer: joining and starting a head end in time all the same, and joining can
// be aborted and closed. If it does not answer for one of several heads, a worker joins by the others. One
// that is slower than `lease`: joining takes longer, and the job runs.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <netdb.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "job.h"

namespace {

constexpr const char* kName = "unanswered.test";
constexpr const char* kSlowName = "slow.test";  // of 127.0.0.1
constexpr auto kSlow = std::chrono::milliseconds(2500);

std::mutex mutex;
std::condition_variable asked_or_released;
int asked = 0;
bool released = false;
std::atomic<int> slow_look_ups = 0;

}  // namespace

// Replaces the system's resolver in this program. Blocks for kName until `released`, then reports an unknown
// name. Takes kSlow for kSlowName.
extern "C" __attribute__((visibility("default"))) int getaddrinfo(const char* node, const char* service,
                                                                  const addrinfo* hints, addrinfo** list) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (node && std::strcmp(node, kSlowName) == 0) {
    ++slow_look_ups;
    std::this_thread::sleep_for(kSlow);
    return real("127.0.0.1", service, hints, list);
  }
  if (!node || std::strcmp(node, kName) != 0) return real(node, service, hints, list);
  std::unique_lock lock(mutex);
  ++asked;
  asked_or_released.notify_all();
  asked_or_released.wait(lock, [] { return released; });
  --asked;
  asked_or_released.notify_all();
  return EAI_NONAME;
}

namespace dsgd_test::resolve_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The name server answers when a test is over, so a call that waits for it never returns.
class Resolve : public ::testing::Test {
 protected:
  Resolve() {
    dsgd_config_set(config_, "head", (std::string(kName) + ":7700").c_str(), nullptr);
    dsgd_config_set(config_, "num_workers", "2", nullptr);
    dsgd_config_set(config_, "token", "secret", nullptr);
  }
  ~Resolve() override {
    dsgd_config_free(config_);
    std::unique_lock lock(mutex);
    released = true;
    asked_or_released.notify_all();
    asked_or_released.wait(lock, [] { return asked == 0; });
    released = false;
  }
  static void await_questions(int count) {
    std::unique_lock lock(mutex);
    asked_or_released.wait(lock, [count] { return asked >= count; });
  }
  dsgd_config* const config_ = dsgd_config_new();
};

TEST_F(Resolve, JoiningEndsAtItsDeadline) {
  for (const char* embed : {"auto", "never"}) {
    dsgd_config_set(config_, "embed_head", embed, nullptr);
    dsgd_config_set(config_, "init_timeout", "100ms", nullptr);
    dsgd_session* session = nullptr;
    Error error;
    EXPECT_EQ(dsgd_init(config_, &session, error), DSGD_ERR_TIMEOUT);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("init_timeout"), HasSubstr(kName), HasSubstr("resolve")));
  }
}

TEST_F(Resolve, AnAbortedJoinCanBeClosedAtOnce) {
  int joins = 0;
  for (const bool abort : {true, false}) {
    dsgd_session* session = nullptr;
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_init_begin(config_, nullptr, &session, &op, error_));
    await_questions(++joins);
    if (abort) DSGD_OK_OR_FAIL(dsgd_op_abort(op, "not any more", error_));
    DSGD_OK_OR_FAIL(dsgd_close(session, 0, error_));
    Error error;
    EXPECT_EQ(dsgd_op_wait(op, -1, error), abort ? DSGD_ERR_ABORTED : DSGD_ERR_CLOSED);
    dsgd_op_free(op);
    dsgd_session_free(session);
  }
}

TEST_F(Resolve, AHeadEndsItsStartAtItsDeadline) {
  dsgd_config_set(config_, "init_timeout", "100ms", nullptr);
  dsgd_head* head = nullptr;
  Error error;
  EXPECT_EQ(dsgd_head_start(config_, &head, error), DSGD_ERR_TIMEOUT);
  EXPECT_THAT(error.message(), AllOf(HasSubstr(kName), HasSubstr("resolve")));
}

// A dial gives up after a lease; the next one gets the answer that the first has asked for. Heartbeats, which
// have a lease to connect, go to the address that the join has found.
TEST_F(Resolve, AJoinSucceedsWithANameServerSlowerThanALease) {
  dsgd_config_set(config_, "num_workers", "1", nullptr);
  dsgd_config_set(config_, "lease", "2s", nullptr);
  dsgd_config_set(config_, "head", "127.0.0.1:0", nullptr);
  dsgd_head* head = nullptr;
  DSGD_OK_OR_FAIL(dsgd_head_start(config_, &head, error_));
  const std::string address = dsgd_head_address(head);
  dsgd_config_set(config_, "head", (kSlowName + address.substr(address.rfind(':'))).c_str(), nullptr);
  dsgd_config_set(config_, "embed_head", "never", nullptr);
  dsgd_session* session = nullptr;
  DSGD_OK_OR_FAIL(dsgd_init(config_, &session, error_));
  DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));  // tells the head through a heartbeat connection
  dsgd_session_free(session);
  dsgd_head_free(head);
  EXPECT_EQ(slow_look_ups, 2);  // for the worker's own address, and for the dials
}

TEST_F(Resolve, AMuteNameServerForOneOfSeveralHeadsDoesNotKeepAWorkerFromJoining) {
  dsgd_config_set(config_, "num_workers", "1", nullptr);
  dsgd_config_set(config_, "lease", "2s", nullptr);
  dsgd_config_set(config_, "init_timeout", "20s", nullptr);
  dsgd_config_set(config_, "head", "127.0.0.1:0", nullptr);
  dsgd_head* head = nullptr;
  DSGD_OK_OR_FAIL(dsgd_head_start(config_, &head, error_));
  dsgd_config_set(config_, "head", (std::string(kName) + ":7700," + dsgd_head_address(head)).c_str(),
                  nullptr);
  dsgd_session* session = nullptr;
  DSGD_OK_OR_FAIL(dsgd_init(config_, &session, error_));
  DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));
  dsgd_session_free(session);
  dsgd_head_free(head);
}

}  // namespace
}  // namespace dsgd_test::resolve_test

#include "transport/uv/notifier.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>

#include "transport/uv/fd.h"

namespace dsgd::transport::uv {
namespace {

// Level, not count: set() adds to the eventfd's counter, clear() reads it away whatever it was.
class EventNotifier final : public Notifier {
 public:
  explicit EventNotifier(Fd fd) : fd_(std::move(fd)) {}
  int fd() const override { return fd_.get(); }
  void set() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(fd_.get(), &one, sizeof one);  // full: it is readable already
  }
  void clear() override {
    uint64_t count;
    // Empty: it was clear already.
    [[maybe_unused]] const ssize_t n = ::read(fd_.get(), &count, sizeof count);
  }

 private:
  const Fd fd_;
};

}  // namespace

Result<std::unique_ptr<Notifier>> make_notifier() {
  Fd fd = above_standard_streams([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!fd) {
    const Code code = errno == EMFILE || errno == ENFILE ? Code::kLimit : Code::kInternal;
    return Status(code,
                  std::string("no file descriptor is left for an event queue: ") + std::strerror(errno));
  }
  return std::unique_ptr<Notifier>(std::make_unique<EventNotifier>(std::move(fd)));
}

}  // namespace dsgd::transport::uv

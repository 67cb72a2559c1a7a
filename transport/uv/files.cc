#include "transport/uv/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "transport/uv/fd.h"
#include "transport/uv/guard.h"

namespace dsgd::transport::uv {
namespace {

constexpr int kMaxLinks = 40;  // that are followed, as by Linux

Status file_error(const std::string& what, const std::string& path, int error) {
  const bool missing = error == ENOENT;
  const bool full = error == ENOSPC || error == EDQUOT;
  return Status(error == ENOMEM ? Code::kNoMemory
                : missing       ? Code::kNotFound
                                : Code::kIo,
                "cannot " + what + " '" + path + "': " + errno_text(error) +
                    (full               ? "; free some space"
                     : error == ENOTDIR ? "; give the path of a folder"
                     : missing          ? ""
                                        : "; check its permissions and its disk"));
}

Fd open_file(const std::string& path, int flags, mode_t mode = 0) {
  return above_standard_streams([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); });
}

// For a secret: never an old file, which others may have open.
Fd make_file(const std::string& path, Access access) {
  if (access == Access::kDefault) return open_file(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  ::unlink(path.c_str());
  return open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
}

// The target of a symbolic link, as a path from where the link's path begins; none: it is no link.
std::optional<std::string> link_target(const std::string& path) {
  std::string target(PATH_MAX, '\0');
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  if (length < 0) return {};
  target.resize(static_cast<size_t>(length));
  return target.starts_with('/') ? target : path.substr(0, path.rfind('/') + 1) + target;
}

Status write_all(int fd, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_error("write", path, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

class PosixFile final : public ReadableFile {
 public:
  PosixFile(Fd fd, std::string path, uint64_t nbytes)
      : fd_(std::move(fd)), path_(std::move(path)), nbytes_(nbytes) {}
  uint64_t nbytes() const override { return nbytes_; }
  Status read(uint64_t offset, std::span<std::byte> to) override {
    while (!to.empty()) {
      const ssize_t count = ::pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return file_error("read", path_, errno);
      if (count == 0)
        return Status(Code::kIo, "cannot read '" + path_ + "': it ends at byte " + std::to_string(offset));
      offset += static_cast<uint64_t>(count);
      to = to.subspan(static_cast<size_t>(count));
    }
    return {};
  }

 private:
  Fd fd_;
  std::string path_;
  uint64_t nbytes_;
};

struct PosixLock final : FileLock {
  explicit PosixLock(Fd f) : fd(std::move(f)) {}
  const Fd fd;
};

// The work of one thread, which ends when it has none left and `closing` is set. A disk may block the thread
// for ever, so nothing waits for its end.
struct WorkList {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool closing = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return closing || !work.empty(); });
      if (work.empty()) return;
      std::function<void()> next = std::move(work.front());
      work.pop_front();
      lock.unlock();
      next();
      next = nullptr;  // it may hold the last reference to the files
      lock.lock();
    }
  }
};

class PosixFiles final : public Files {
 public:
  ~PosixFiles() override {
    std::lock_guard lock(list_->mutex);
    list_->closing = true;
    list_->changed.notify_one();
  }

  Status run(std::function<void()> work) override {
    std::lock_guard lock(list_->mutex);
    if (!started_) {
      auto thread = start_thread("dsgd-files", [list = list_] { list->run(); });
      if (!thread.ok()) return thread.status();
      thread.value().detach();
      started_ = true;
    }
    list_->work.push_back(std::move(work));
    list_->changed.notify_one();
    return {};
  }

  Status make_folder(const std::string& path) override {
    for (size_t at = 0; at != path.npos;) {
      at = path.find('/', at + 1);
      const std::string folder = path.substr(0, at);
      if (::mkdir(folder.c_str(), 0777) == 0 || errno == EEXIST) continue;
      struct stat found{};
      const int error = errno;
      if (::stat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode))
        return file_error("make the folder", folder, error);
    }
    struct stat found{};
    if (::stat(path.c_str(), &found) != 0) return file_error("make the folder", path, errno);
    return S_ISDIR(found.st_mode) ? Status() : file_error("make the folder", path, EEXIST);
  }

  Result<std::string> resolve(const std::string& path) override {
    std::string end = path;
    for (int links = 0; const auto target = link_target(end); ++links) {
      if (links == kMaxLinks) return file_error("follow the links of", path, ELOOP);
      end = *target;
    }
    const size_t name = end.rfind('/') + 1;  // 0: it is in the working folder
    const std::unique_ptr<char, void (*)(void*)> folder(
        ::realpath(name == 0 ? "." : end.substr(0, name).c_str(), nullptr), ::free);
    if (!folder) return file_error("find the folder of", path, errno);
    const std::string above = folder.get();
    return (above == "/" ? above : above + '/') + end.substr(name);
  }

  Status write(const std::string& path, std::span<const std::span<const std::byte>> parts,
               Access access) override {
    const Fd fd = make_file(path, access);
    if (!fd) return file_error("make the file", path, errno);
    for (const auto& part : parts) DSGD_RETURN_IF_ERROR(write_all(fd.get(), path, part));
    return ::fsync(fd.get()) == 0 ? Status() : file_error("write", path, errno);
  }

  Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return {};
    if (errno == ENOTEMPTY || errno == EEXIST)
      return Status(Code::kExists, "cannot rename '" + from + "': '" + to + "' already exists");
    return file_error("rename", from, errno);
  }

  Status sync_folder(const std::string& path) override {
    const Fd fd = open_file(path, O_RDONLY | O_DIRECTORY);
    if (!fd) return file_error("open the folder", path, errno);
    return ::fsync(fd.get()) == 0 ? Status() : file_error("write the folder", path, errno);
  }

  Status remove_file(const std::string& path) override {
    return ::unlink(path.c_str()) == 0 ? Status() : file_error("remove", path, errno);
  }

  Status remove_folder(const std::string& path) override {
    return ::rmdir(path.c_str()) == 0 ? Status() : file_error("remove the folder", path, errno);
  }

  Result<std::vector<std::string>> list(const std::string& folder) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> opened(::opendir(folder.c_str()), ::closedir);
    if (!opened) return file_error("read the folder", folder, errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(opened.get())) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    if (errno != 0) return file_error("read the folder", folder, errno);
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    Fd fd = open_file(path, O_RDONLY | O_NONBLOCK);  // a FIFO would block
    struct stat found{};
    if (!fd || ::fstat(fd.get(), &found) != 0) return file_error("open", path, errno);
    if (!S_ISREG(found.st_mode)) return Status(Code::kIo, "cannot open '" + path + "': it is not a file");
    return std::unique_ptr<ReadableFile>(
        std::make_unique<PosixFile>(std::move(fd), path, static_cast<uint64_t>(found.st_size)));
  }

  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override {
    Fd fd = open_file(path, O_RDWR | O_CREAT | O_NONBLOCK, 0600);
    if (!fd) return file_error("make the file", path, errno);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return Status(Code::kExists, "'" + path + "' is locked by another process");
      return file_error("lock", path, errno);
    }
    return std::unique_ptr<FileLock>(std::make_unique<PosixLock>(std::move(fd)));
  }

 private:
  const std::shared_ptr<WorkList> list_ = std::make_shared<WorkList>();
  bool started_ = false;  // under the list's mutex
};

}  // namespace

std::shared_ptr<Files> make_files() { return std::make_shared<PosixFiles>(); }

}  // namespace dsgd::transport::uv

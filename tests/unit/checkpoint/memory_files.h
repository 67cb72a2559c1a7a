// Files in memory, whose k-th change can fail or be the last one before a crash.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "transport/files.h"

namespace dsgd_test {

using dsgd::Code;
using dsgd::Result;
using dsgd::Status;

// The contents of the disk. They outlive the processes that use them.
struct MemoryDisk {
  std::mutex mutex;
  std::map<std::string, std::string> files;
  std::set<std::string> folders{"."};
  std::set<std::string> locked;
};

class MemoryFiles : public dsgd::transport::Files {
 public:
  explicit MemoryFiles(std::shared_ptr<MemoryDisk> disk) : disk_(std::move(disk)) {}

  // Number of changes of the disk so far: writes, renames, removals, made folders and syncs.
  // Call it while no other thread uses these files.
  int changes() const { return changes_; }
  // The k-th change from 1 on fails. `crash`: so do all later ones, and a write leaves the half of its bytes.
  void fail_at(int change, bool crash) { fail_at_ = change, crash_ = crash; }
  // Calls `pause` before the k-th change.
  void before_change(int change, std::function<void()> pause) {
    pause_at_ = change, pause_ = std::move(pause);
  }

  Status run(std::function<void()> work) override {
    work();
    return {};
  }
  Status make_folder(const std::string& path) override {
    return change([&] { disk_->folders.insert(path); });
  }
  Result<std::string> resolve(const std::string& path) override { return path; }  // there are no links
  Status write(const std::string& path, std::span<const std::span<const std::byte>> parts,
               dsgd::transport::Access) override {
    std::string bytes;
    for (const auto& part : parts) bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
    if (!disk_->folders.count(path.substr(0, path.rfind('/'))))
      return Status(Code::kNotFound, "cannot make the file '" + path + "': no folder");
    return change([&] { disk_->files[path] = bytes; },
                  [&] { disk_->files[path] = bytes.substr(0, bytes.size() / 2); });
  }
  Status rename(const std::string& from, const std::string& to) override {
    return change([&] {
      if (disk_->files.count(from)) {
        disk_->files[to] = disk_->files.at(from);
        disk_->files.erase(from);
        return Status();
      }
      if (!disk_->folders.count(from)) return Status(Code::kNotFound, "no file '" + from + "'");
      const auto inside = [this](const std::string& folder) {
        std::vector<std::string> paths;
        for (const auto& [path, bytes] : disk_->files)
          if (path.starts_with(folder + '/')) paths.push_back(path);
        return paths;
      };
      if (!inside(to).empty()) return Status(Code::kExists, "'" + to + "' already exists");
      for (const std::string& path : inside(from)) {
        disk_->files[to + path.substr(from.size())] = disk_->files.at(path);
        disk_->files.erase(path);
      }
      disk_->folders.erase(from);
      disk_->folders.insert(to);
      return Status();
    });
  }
  Status sync_folder(const std::string&) override {
    return change([] {});
  }
  Status remove_file(const std::string& path) override {
    return change([&] {
      return disk_->files.erase(path) > 0 ? Status() : Status(Code::kNotFound, "no file '" + path + "'");
    });
  }
  Status remove_folder(const std::string& path) override {
    return change([&] {
      return disk_->folders.erase(path) > 0 ? Status() : Status(Code::kNotFound, "no folder '" + path + "'");
    });
  }
  Result<std::vector<std::string>> list(const std::string& folder) override {
    std::lock_guard lock(disk_->mutex);
    if (!disk_->folders.count(folder)) return Status(Code::kNotFound, "no folder '" + folder + "'");
    std::vector<std::string> names;
    const auto add = [&](const std::string& path) {
      if (path.rfind(folder + '/', 0) == 0 && path.find('/', folder.size() + 1) == path.npos)
        names.push_back(path.substr(folder.size() + 1));
    };
    for (const auto& [path, bytes] : disk_->files) add(path);
    for (const auto& path : disk_->folders) add(path);
    std::sort(names.begin(), names.end());
    return names;
  }
  Result<std::unique_ptr<dsgd::transport::ReadableFile>> open(const std::string& path) override {
    std::lock_guard lock(disk_->mutex);
    const auto at = disk_->files.find(path);
    if (at == disk_->files.end()) return Status(Code::kNotFound, "no file '" + path + "'");
    return std::unique_ptr<dsgd::transport::ReadableFile>(std::make_unique<File>(at->second));
  }
  Result<std::unique_ptr<dsgd::transport::FileLock>> lock(const std::string& path) override {
    std::lock_guard lock(disk_->mutex);
    if (!disk_->locked.insert(path).second)
      return Status(Code::kExists, "'" + path + "' is locked by another process");
    return std::unique_ptr<dsgd::transport::FileLock>(std::make_unique<Lock>(disk_, path));
  }

 private:
  struct Lock final : dsgd::transport::FileLock {
    Lock(std::shared_ptr<MemoryDisk> d, std::string p) : disk(std::move(d)), path(std::move(p)) {}
    ~Lock() override {
      std::lock_guard lock(disk->mutex);
      disk->locked.erase(path);
    }
    const std::shared_ptr<MemoryDisk> disk;
    const std::string path;
  };
  struct File final : dsgd::transport::ReadableFile {
    explicit File(std::string content) : bytes(std::move(content)) {}
    uint64_t nbytes() const override { return bytes.size(); }
    Status read(uint64_t offset, std::span<std::byte> to) override {
      if (offset + to.size() > bytes.size()) return Status(Code::kIo, "the file ends too early");
      if (!to.empty()) std::memcpy(to.data(), bytes.data() + offset, to.size());
      return {};
    }
    std::string bytes;
  };

  template <typename Change, typename Half>
  Status change(Change make, Half make_half) {
    if (changes_ + 1 == pause_at_) std::exchange(pause_, nullptr)();
    std::lock_guard lock(disk_->mutex);
    ++changes_;
    const bool crashed = crash_ && fail_at_ > 0 && changes_ > fail_at_;
    if (changes_ != fail_at_ && !crashed) {
      if constexpr (std::is_same_v<decltype(make()), Status>) return make();
      make();
      return {};
    }
    if (crash_ && !crashed) make_half();
    return Status(Code::kIo, "the disk failed");
  }
  template <typename Change>
  Status change(Change make) {
    return change(make, [] {});
  }

  const std::shared_ptr<MemoryDisk> disk_;
  int changes_ = 0, fail_at_ = 0;
  bool crash_ = false;
  int pause_at_ = 0;
  std::function<void()> pause_;
};

}  // namespace dsgd_test

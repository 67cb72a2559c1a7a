// Files: core's only way to a disk. One implementation uses POSIX (transport/uv); tests keep files in memory
// and fail at any operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/base/status.h"

namespace dsgd::transport {

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual uint64_t nbytes() const = 0;
  // Fills `to`; a file that ends before is an error.
  virtual Status read(uint64_t offset, std::span<std::byte> to) = 0;
};

class FileLock {
 public:
  virtual ~FileLock() = default;  // unlocks
};

// The users that may open a file that write() makes. With kDefault a file that exists keeps its mode; with
// kOwner it is removed first, since others may have it open.
enum class Access {
  kDefault,  // as the process says (umask)
  kOwner,    // its user alone: the file holds a secret
};

// All functions but run() may block for as long as the disk takes. Errors name the path: kNotFound, kIo.
class Files {
 public:
  virtual ~Files() = default;
  // Runs `work` on a thread of its own, behind the work that was given before. `work` must not throw and may
  // outlive this object. Any thread.
  virtual Status run(std::function<void()> work) = 0;

  // Makes a folder, and those above it. It may exist already.
  virtual Status make_folder(const std::string& path) = 0;
  // The path behind all symbolic links. The file itself, at the end of them, need not be there.
  virtual Result<std::string> resolve(const std::string& path) = 0;
  // Makes or replaces a file. When it returns, the bytes are on the disk.
  virtual Status write(const std::string& path, std::span<const std::span<const std::byte>> parts,
                       Access access) = 0;
  // Replaces `to` if it exists: by a file a file, by a folder an empty folder. kExists if `to` is a folder
  // that is not empty.
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  // When it returns, the names in the folder are on the disk.
  virtual Status sync_folder(const std::string& path) = 0;
  virtual Status remove_file(const std::string& path) = 0;
  virtual Status remove_folder(const std::string& path) = 0;  // an empty one
  virtual Result<std::vector<std::string>> list(const std::string& folder) = 0;
  virtual Result<std::unique_ptr<ReadableFile>> open(const std::string& path) = 0;
  // Makes the file, for its user alone, if it does not exist, and locks it until the lock is destroyed or the
  // process ends. kExists if it is locked already. The file stays.
  virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;

  // Makes or replaces the file `path` of `folder` by way of `draft`, a file in the same folder: after a crash
  // `path` is the old file or the new one, whole. When it returns, the new one is on the disk.
  Status replace(const std::string& folder, const std::string& draft, const std::string& path,
                 std::span<const std::span<const std::byte>> parts, Access access) {
    Status status = write(draft, parts, access);
    if (status.ok()) status = rename(draft, path);
    return status.ok() ? sync_folder(folder) : status;
  }
};

}  // namespace dsgd::transport

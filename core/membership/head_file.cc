#include "core/membership/head_file.h"

#include <utility>

namespace dsgd {
namespace {

using transport::Files;
using transport::HeadRecord;

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status remove_from(Files& files, const std::string& path) {
  const Status status = files.remove_file(path);
  if (status.code() == Code::kNotFound) return {};
  return status.ok() ? files.sync_folder(folder_of(path)) : status;
}

constexpr const char* kFileRemedy = "give another path, or remove the file to begin a new job";

// An error of the disk, which names the file.
Status unusable(const std::string& path, const Status& why) {
  return Status(why.code(), "`head_state` = '" + path + "' cannot be used: " + why.message())
      .with_parameter("head_state");
}

}  // namespace

Result<HeadRecord> read_head_file(std::span<const std::byte> bytes, const std::string& path) {
  return read_head_record(bytes, path, kFileRemedy);
}

Result<HeadFile::Opened> HeadFile::open(std::shared_ptr<Files> files, std::string path,
                                        transport::Loop& loop) {
  if (path.find('/') == path.npos) path = "./" + path;
  std::string real;
  if (const Status status = files->resolve(path).into(&real); !status.ok()) return unusable(path, status);
  auto lock = files->lock(real + ".lock");
  if (lock.status().code() == Code::kExists)
    return Status(Code::kExists,
                  "another head uses `head_state` = '" + path + "'; stop it, or give this one another path")
        .with_parameter("head_state");
  if (!lock.ok()) return unusable(path, lock.status());
  Opened opened{
      std::unique_ptr<HeadFile>(new HeadFile(files, std::shared_ptr(std::move(lock).value()), real, loop)),
      {}};
  auto file = files->open(real);
  if (file.status().code() == Code::kNotFound) return opened;
  if (!file.ok()) return unusable(path, file.status());
  const uint64_t nbytes = file.value()->nbytes();
  if (nbytes > kMaxHeadRecordBytes)
    return unusable_head_state(path, "it is too large to be the state of a dsgd head", kFileRemedy);
  std::vector<std::byte> bytes(nbytes);
  if (Status status = file.value()->read(0, bytes); !status.ok()) return unusable(path, status);
  auto record = read_head_file(bytes, path);
  if (!record.ok()) return record.status();
  opened.record = std::move(record).value();
  return opened;
}

// The work may outlive this object, and holds what it needs.
void HeadFile::run(std::function<Status()> change, Done done) {
  const auto tell = [poster = poster_, done = std::move(done)](const Status& status) {
    poster->post([done, status] { done(status); });
  };
  const Status started = files_->run([lock = lock_, change = std::move(change), tell] { tell(change()); });
  if (!started.ok()) tell(started);
}

void HeadFile::store(const HeadRecord& record, Done stored) {
  const auto bytes = std::make_shared<const std::vector<std::byte>>(write_head_record(record));
  run(
      [files = files_, path = path_, bytes] {
        const std::span<const std::byte> part = *bytes;
        const Status status =
            files->replace(folder_of(path), path + ".new", path, {&part, 1}, transport::Access::kOwner);
        if (!status.ok()) files->remove_file(path + ".new");
        return status;
      },
      std::move(stored));
}

void HeadFile::remove(Done removed) {
  run([files = files_, path = path_] { return remove_from(*files, path); }, std::move(removed));
}

}  // namespace dsgd

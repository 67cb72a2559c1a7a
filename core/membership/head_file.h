// The record of a head (head_record.h) in a file. It holds the job's nonce, so only its user may read it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/membership/head_record.h"
#include "core/membership/view_store.h"
#include "transport/files.h"
#include "transport/poster.h"

namespace dsgd {

class HeadFile final : public ViewStore {
 public:
  struct Opened {
    std::unique_ptr<HeadFile> file;
    std::optional<transport::HeadRecord> record;  // none: there is no job to go on with
  };
  // Locks the file, at the end of symbolic links, so that no other head has it, and reads it. Blocks. `loop`:
  // of the head.
  static Result<Opened> open(std::shared_ptr<transport::Files> files, std::string path,
                             transport::Loop& loop);
  ~HeadFile() override { close(); }
  // Before the loop ends. Changes under way go on, but nothing is told of them. Any thread.
  void close() { poster_->close(); }

  void store(const transport::HeadRecord& record, Done stored) override;
  void remove(Done removed) override;

 private:
  HeadFile(std::shared_ptr<transport::Files> files, std::shared_ptr<transport::FileLock> lock,
           std::string path, transport::Loop& loop)
      : files_(std::move(files)),
        lock_(std::move(lock)),
        path_(std::move(path)),
        poster_(std::make_shared<transport::Poster>(loop)) {}
  void run(std::function<Status()> change, Done done);

  const std::shared_ptr<transport::Files> files_;
  const std::shared_ptr<transport::FileLock> lock_;
  const std::string path_;  // without symbolic links
  const std::shared_ptr<transport::Poster> poster_;
};

// `path`: for messages.
Result<transport::HeadRecord> read_head_file(std::span<const std::byte> bytes, const std::string& path);

}  // namespace dsgd

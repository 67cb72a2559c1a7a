// The folder of checkpoints: a checkpoint appears whole or not at all, and old ones go.
#include "core/checkpoint/store.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <string>

#include "tests/unit/checkpoint/memory_files.h"

namespace dsgd::checkpoint {
namespace {

using dsgd_test::MemoryDisk;
using dsgd_test::MemoryFiles;

Status save(transport::Files& files, uint64_t step, uint64_t keep = 2) {
  Store store(files, "dir");
  if (Status status = store.prepare(step); !status.ok()) return status;
  Manifest manifest;
  manifest.step = step;
  manifest.workers = 1;
  const std::string content = "bytes of step " + std::to_string(step);
  const auto part = std::as_bytes(std::span(content));
  auto file = store.write_file(step, file_name(0, 1), {&part, 1});
  if (!file.ok()) return file.status();
  manifest.files = {file.value()};
  if (Status status = store.publish(manifest); !status.ok()) return status;
  return store.retain(keep, step);
}

std::vector<std::string> checkpoints(MemoryDisk& disk) {
  std::vector<std::string> paths;
  for (const auto& [path, bytes] : disk.files)
    if (path.ends_with("/manifest.json")) paths.push_back(path.substr(0, path.rfind('/')));
  return paths;
}

TEST(Store, FindsTheNewestCheckpointOrTheOneNamed) {
  const auto disk = std::make_shared<MemoryDisk>();
  MemoryFiles files(disk);
  EXPECT_EQ(Store(files, "dir").find().status().code(), Code::kNotFound);
  for (const uint64_t step : std::vector<uint64_t>{9, 10, 11000000000})
    ASSERT_TRUE(save(files, step, 0).ok());
  EXPECT_EQ(Store(files, "dir").find()->manifest.step, 11000000000u);
  EXPECT_EQ(Store(files, "dir/step-0000000009").find()->manifest.step, 9u);
}

TEST(Store, KeepsTheNewestCheckpoints) {
  const auto disk = std::make_shared<MemoryDisk>();
  MemoryFiles files(disk);
  for (uint64_t step = 1; step <= 5; ++step) ASSERT_TRUE(save(files, step, 2).ok());
  EXPECT_EQ(checkpoints(*disk), (std::vector<std::string>{"dir/step-0000000004", "dir/step-0000000005"}));
  EXPECT_EQ(disk->files.size(), 4u);
  EXPECT_EQ(disk->folders, (std::set<std::string>{".", "dir", "dir/step-0000000004", "dir/step-0000000005"}));
}

// A worker that was stopped before it published goes on when the others have saved the step without it.
TEST(Store, PublishesNothingWhereTheFilesAreNotThoseThatItSaved) {
  const auto disk = std::make_shared<MemoryDisk>();
  MemoryFiles files(disk);
  Store store(files, "dir");
  ASSERT_TRUE(save(files, 1).ok());
  Manifest late = store.find()->manifest;
  EXPECT_EQ(store.publish(late).code(), Code::kExists) << "the step is saved";
  late.step = 2;
  late.files[0].nbytes += 1;
  ASSERT_TRUE(store.prepare(2).ok());
  EXPECT_EQ(store.publish(late).code(), Code::kExists) << "there is no file";
  const std::string other = "of the others";
  const auto part = std::as_bytes(std::span(other));
  ASSERT_TRUE(store.write_file(2, late.files[0].name, {&part, 1}).ok());
  EXPECT_EQ(store.publish(late).code(), Code::kExists) << "the file has another size";
  EXPECT_EQ(store.find()->manifest.step, 1u);
}

TEST(Store, LeavesFilesOfOthersAlone) {
  const auto disk = std::make_shared<MemoryDisk>();
  MemoryFiles files(disk);
  ASSERT_TRUE(save(files, 1, 1).ok());
  disk->files["dir/step-0000000001/notes.txt"] = disk->files["dir/step-x"] = "mine";
  ASSERT_TRUE(save(files, 2, 1).ok());
  EXPECT_EQ(disk->files.count("dir/step-0000000001/notes.txt"), 1u);
  EXPECT_EQ(disk->files.count("dir/step-x"), 1u);
  EXPECT_EQ(checkpoints(*disk).size(), 1u);
}

TEST(Store, RefusesAStepThatIsNotLater) {
  const auto disk = std::make_shared<MemoryDisk>();
  MemoryFiles files(disk);
  ASSERT_TRUE(save(files, 5).ok());
  const auto before = disk->files;
  for (const uint64_t step : {4, 5}) {
    const Status status = save(files, step);
    EXPECT_EQ(status.code(), Code::kExists);
    EXPECT_NE(status.message().find("has a checkpoint of step 5"), std::string::npos);
  }
  EXPECT_EQ(disk->files, before);
}

// At each change of the disk: the failure is reported, or the process dies. Afterwards the newest checkpoint
// is whole, and it is the earlier one or the new one. The next save works.
TEST(Store, AFailureAtAnyMomentLeavesAWholeCheckpoint) {
  for (const bool crash : {false, true}) {
    bool failed = true;
    for (int change = 1; failed; ++change) {
      SCOPED_TRACE(std::to_string(change) + (crash ? ": crash" : ": failure"));
      const auto disk = std::make_shared<MemoryDisk>();
      MemoryFiles before(disk);
      for (const uint64_t step : {1, 2}) ASSERT_TRUE(save(before, step).ok());
      MemoryFiles files(disk);
      files.fail_at(change, crash);
      failed = !save(files, 3).ok();
      EXPECT_EQ(failed, files.changes() >= change);

      MemoryFiles after(disk);
      auto found = Store(after, "dir").find();
      ASSERT_TRUE(found.ok()) << found.status().message();
      const uint64_t step = found->manifest.step;
      EXPECT_TRUE(step == 3 || (failed && step == 2)) << step;
      const std::string& content = disk->files.at(found->path + '/' + found->manifest.files[0].name);
      EXPECT_EQ(content, "bytes of step " + std::to_string(step));
      ASSERT_TRUE(save(after, 4).ok());
      for (const std::string& path : checkpoints(*disk)) EXPECT_GE(path, "dir/step-0000000002");
      for (const std::string& folder : disk->folders)
        EXPECT_TRUE(!folder.starts_with("dir/") || disk->files.count(folder + "/manifest.json")) << folder;
    }
  }
}

}  // namespace
}  // namespace dsgd::checkpoint

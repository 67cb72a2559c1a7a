// The folder of checkpoints: a checkpoint appears whole or not at all, and old ones go.
#include "core/checkpoint/store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint/checksum.h"
#include "tests/unit/checkpoint/memory_files.h"

namespace dsgd::checkpoint {
namespace {

using dsgd_test::MemoryDisk;
using dsgd_test::MemoryFiles;

Status save(transport::Files& files, uint64_t step, uint64_t keep = 2, uint64_t number = 1) {
  Store store(files, "dir");
  const Draft draft{step, number};
  if (Status status = store.prepare(draft); !status.ok()) return status;
  Manifest manifest;
  manifest.step = step;
  manifest.workers = 1;
  const std::string content = "bytes of step " + std::to_string(step) + " in draft " + std::to_string(number);
  const auto part = std::as_bytes(std::span(content));
  auto file = store.write_file(draft, file_name(0, 1), {&part, 1});
  if (!file.ok()) return file.status();
  manifest.files = {file.value()};
  if (Status status = store.publish(draft, manifest); !status.ok()) return status;
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

// Two saves to one folder. The first is of a worker that is stopped, and goes on when the job has taken it
// out and saves without it. Each save pauses once, before one of its changes of the disk: the first save runs
// until its pause, then the second one until its pause, then the rest of the first, then the rest of the
// second.
class TwoSaves {
 public:
  TwoSaves(const std::shared_ptr<MemoryDisk>& disk, const std::array<int, 2>& pauses)
      : files_{MemoryFiles(disk), MemoryFiles(disk)} {
    for (size_t i = 0; i < 2; ++i) {
      files_[i].before_change(pauses[i], [this, i] {
        yield(i, false);
        await(i);
      });
    }
  }
  std::array<Status, 2> run(const std::array<uint64_t, 2>& steps) {
    std::array<Status, 2> results;
    std::array<std::thread, 2> threads;
    for (size_t i = 0; i < 2; ++i) {
      threads[i] = std::thread([this, i, &steps, &results] {
        await(i);
        results[i] = save(files_[i], steps[i], 1, i + 1);
        yield(i, true);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

 private:
  void await(size_t save) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == save || ended_[1 - save]; });
  }
  void yield(size_t save, bool ended) {
    std::lock_guard lock(mutex_);
    turn_ = 1 - save;
    ended_[save] = ended;
    changed_.notify_all();
  }

  std::array<MemoryFiles, 2> files_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t turn_ = 0;
  std::array<bool, 2> ended_{};
};

// Steps 1 and 2 were saved, and step 2 is kept. `occupied`: an earlier removal of a step 2 has left a file of
// others.
std::shared_ptr<MemoryDisk> disk_with_step_2(bool occupied) {
  const auto disk = std::make_shared<MemoryDisk>();
  MemoryFiles files(disk);
  for (const uint64_t step : {1, 2}) EXPECT_TRUE(save(files, step, 1).ok());
  if (!occupied) return disk;
  disk->folders.insert("dir/step-0000000002.removed");
  disk->files["dir/step-0000000002.removed/notes.txt"] = "mine";
  return disk;
}

void expect_a_whole_checkpoint_after_two_saves(bool occupied) {
  MemoryFiles alone(disk_with_step_2(occupied));
  ASSERT_TRUE(save(alone, 3, 1).ok());
  const int changes = alone.changes();
  std::set<std::string> left = {".", "dir", "dir/step-0000000005"};
  if (occupied) left.insert("dir/step-0000000002.removed");
  std::map<Code, int> seconds;
  for (const uint64_t step : {3, 4}) {  // of the second save
    for (int first = 1; first <= changes; ++first) {
      for (int second = 1; second <= changes; ++second) {
        SCOPED_TRACE("step " + std::to_string(step) + ", pauses " + std::to_string(first) + " and " +
                     std::to_string(second));
        const auto disk = disk_with_step_2(occupied);
        MemoryFiles files(disk);
        const auto results = TwoSaves(disk, {first, second}).run({3, step});
        ++seconds[results[1].code()];
        for (const Status& result : results) {
          EXPECT_TRUE(result.ok() || result.code() == Code::kExists || result.code() == Code::kNotFound)
              << result.message();
        }
        auto found = Store(files, "dir").find();
        ASSERT_TRUE(found.ok()) << found.status().message();
        const uint64_t newest = results[1].ok() ? step : results[0].ok() ? 3 : 2;
        EXPECT_GE(found->manifest.step, newest);
        const Manifest::File& file = found->manifest.files[0];
        const std::string& content = disk->files.at(found->path + '/' + file.name);
        Checksum checksum;
        ASSERT_TRUE(checksum.begin());
        checksum.add(std::as_bytes(std::span(content)));
        EXPECT_EQ(checksum.value(), file.checksum) << content;
        ASSERT_TRUE(save(files, 5, 1).ok());
        EXPECT_EQ(disk->folders, left);
      }
    }
  }
  EXPECT_GT(seconds[Code::kOk], 50);
  EXPECT_GT(seconds[Code::kExists], 5);
}

TEST(Store, TwoSavesThatRunInTurnLeaveAWholeCheckpoint) {
  for (const bool occupied : {false, true}) expect_a_whole_checkpoint_after_two_saves(occupied);
}

TEST(Store, LeavesFilesOfOthersAlone) {
  const auto disk = std::make_shared<MemoryDisk>();
  MemoryFiles files(disk);
  ASSERT_TRUE(save(files, 1, 1).ok());
  disk->files["dir/step-0000000001/notes.txt"] = disk->files["dir/step-x"] = "mine";
  ASSERT_TRUE(save(files, 2, 1).ok());
  EXPECT_EQ(disk->files.count("dir/step-0000000001.removed/notes.txt"), 1u);
  EXPECT_EQ(disk->files.count("dir/step-x"), 1u);
  EXPECT_EQ(checkpoints(*disk).size(), 1u);
}

// Training begins anew in a folder from which the user has removed the checkpoints, but not what dsgd has
// left of one of them.
TEST(Store, RemovesAStepAgainAlthoughItsFirstRemovalHasLeftFilesOfOthers) {
  const auto disk = std::make_shared<MemoryDisk>();
  MemoryFiles files(disk);
  std::set<std::string> left = {".", "dir", "dir/step-0000000003"};
  std::string removed = "dir/step-0000000001";
  for (const char* notes : {"first run", "second run", "third run"}) {
    ASSERT_TRUE(save(files, 1, 1).ok());
    disk->files["dir/step-0000000001/notes.txt"] = notes;
    for (const uint64_t step : {2, 3}) {
      const Status saved = save(files, step, 1);
      ASSERT_TRUE(saved.ok()) << saved.message();
    }
    EXPECT_EQ(checkpoints(*disk), std::vector<std::string>{"dir/step-0000000003"});
    left.insert(removed += ".removed");
    EXPECT_EQ(disk->folders, left);
    EXPECT_EQ(disk->files[removed + "/notes.txt"], notes);
    std::erase_if(disk->files,
                  [](const auto& file) { return file.first.starts_with("dir/step-0000000003/"); });
    disk->folders.erase("dir/step-0000000003");
  }
}

TEST(Store, RemovesTheOtherCheckpointsIfOneCannotBeRemoved) {
  for (int change = 1; change <= 4; ++change) {  // rename, two files and the folder
    const auto disk = std::make_shared<MemoryDisk>();
    MemoryFiles before(disk), files(disk);
    for (uint64_t step = 1; step <= 4; ++step) ASSERT_TRUE(save(before, step, 0).ok());
    files.fail_at(change, false);
    EXPECT_EQ(Store(files, "dir").retain(1, 4).code(), Code::kIo);
    disk->folders.erase("dir/step-0000000001");
    disk->folders.erase("dir/step-0000000001.removed");
    EXPECT_EQ(disk->folders, (std::set<std::string>{".", "dir", "dir/step-0000000004"}));
  }
}

TEST(Store, SavesAlthoughFilesOfAnOldCheckpointCannotBeRemoved) {
  class FilesOfAnother final : public MemoryFiles {
   public:
    using MemoryFiles::MemoryFiles;
    Status remove_file(const std::string& path) override {
      if (path.find("step-0000000001") != std::string::npos) return Status(Code::kIo, "no permission");
      return MemoryFiles::remove_file(path);
    }
  };
  const auto disk = std::make_shared<MemoryDisk>();
  FilesOfAnother files(disk);
  ASSERT_TRUE(save(files, 1, 1).ok());
  EXPECT_EQ(save(files, 2, 1).code(), Code::kIo) << "retain() fails";
  for (const uint64_t step : {3, 4}) {
    EXPECT_TRUE(save(files, step, 1).ok());
    EXPECT_EQ(disk->folders, (std::set<std::string>{".", "dir", "dir/step-0000000001.removed",
                                                    "dir/step-000000000" + std::to_string(step)}));
  }
}

TEST(Store, LeavesFoldersThatOnlyLookLikeRemovalsAlone) {
  const auto disk = std::make_shared<MemoryDisk>();
  MemoryFiles files(disk);
  for (const char* name : {"dir/step-0000000001.removed-by-me", "dir/step-0000000001.mine.removed",
                           "dir/step-0000000001.removed.mine.removed"}) {
    disk->folders.insert(name);
    disk->files[std::string(name) + "/manifest.json"] = "mine";
  }
  const auto before = disk->files;
  ASSERT_TRUE(save(files, 2, 1).ok());
  for (const auto& [path, bytes] : before) EXPECT_EQ(disk->files.count(path), 1u) << path;
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
      EXPECT_EQ(content, "bytes of step " + std::to_string(step) + " in draft 1");
      ASSERT_TRUE(save(after, 4).ok());
      for (const std::string& path : checkpoints(*disk)) EXPECT_GE(path, "dir/step-0000000002");
      for (const std::string& folder : disk->folders)
        EXPECT_TRUE(!folder.starts_with("dir/") || disk->files.count(folder + "/manifest.json")) << folder;
    }
  }
}

}  // namespace
}  // namespace dsgd::checkpoint

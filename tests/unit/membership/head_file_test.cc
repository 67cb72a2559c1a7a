#include "core/membership/head_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/checkpoint/memory_files.h"
#include "tests/unit/membership/fakes.h"
#include "transport/schema/codec.h"

namespace dsgd {
namespace {

using dsgd_test::MemoryDisk;
using dsgd_test::MemoryFiles;
using testing::HasSubstr;
using transport::HeadRecord;

HeadRecord a_record(uint64_t view = 3) {
  HeadRecord record;
  record.job = "digits";
  record.address = "127.0.0.1:7700";
  record.lease = 10s;
  record.num_workers = 2;
  record.min_workers = 1;
  record.max_workers = 4;
  record.job_nonce = std::string("\0\xff nonce", 8);
  record.token_digest.fill(0xfe);
  record.view = view;
  record.paused = record.last_closed = record.ended_well = true;
  record.joined = 3;
  for (int32_t i = 0; i < 3; ++i) {
    HeadRecord::Worker worker;
    worker.info.worker_id = std::string("w") + static_cast<char>('0' + i);
    worker.info.number = i;
    worker.info.addresses = {"10.0.0.1:1"};
    worker.incarnation = 7;
    worker.joined = 1;
    worker.lost = worker.closed = worker.holds_state = i == 1;
    if (i == 1) worker.eviction = Status(Code::kEvicted, "it was lost").with_rank(1, "node1");
    record.workers.push_back(worker);
  }
  record.confirmed = 4;
  record.news.emplace_back().sequence = 5;
  record.news.back().members = {record.workers[0].info, record.workers[2].info};
  return record;
}

std::vector<uint8_t> bytes_of(const HeadRecord& record) { return transport::encode(record); }

class HeadFileTest : public testing::Test {
 protected:
  Result<HeadFile::Opened> open() {
    return HeadFile::open(std::make_shared<MemoryFiles>(disk_), "./head", loop_);
  }
  Status store(HeadFile& file, const HeadRecord& record) {
    Status result(Code::kInternal, "not called");
    file.store(record, [&](const Status& status) { result = status; });
    EXPECT_EQ(result.code(), Code::kInternal) << "called from within";
    loop_.advance(1ms);
    return result;
  }

  FakeLoop loop_;
  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
};

TEST_F(HeadFileTest, ARecordIsReadAsItWasStored) {
  {
    auto opened = open();
    ASSERT_TRUE(opened.ok());
    EXPECT_FALSE(opened->record);
    ASSERT_TRUE(store(*opened->file, a_record()).ok());
  }
  auto again = open();
  ASSERT_TRUE(again.ok()) << again.status().message();
  ASSERT_TRUE(again->record);
  EXPECT_EQ(bytes_of(*again->record), bytes_of(a_record()));
  EXPECT_TRUE(again->record->paused);
  EXPECT_EQ(again->record->workers[1].eviction.message(), "it was lost");
  again->file->remove([](const Status& status) { EXPECT_TRUE(status.ok()); });
  again->file->remove([](const Status& status) { EXPECT_TRUE(status.ok()) << "there is none any more"; });
  loop_.advance(1ms);
  EXPECT_EQ(disk_->files.count("./head"), 0u);
}

TEST_F(HeadFileTest, TwoHeadsCannotUseOneFile) {
  auto one = open();
  ASSERT_TRUE(one.ok());
  auto two = open();
  EXPECT_EQ(two.status().code(), Code::kExists);
  EXPECT_EQ(two.status().parameter(), "head_state");
  EXPECT_THAT(two.status().message(), HasSubstr("another head uses"));
  one->file.reset();
  EXPECT_TRUE(open().ok());
}

TEST_F(HeadFileTest, ACrashLeavesTheOldOrTheNewRecord) {
  for (int crash = 1; crash <= 3; ++crash) {
    disk_ = std::make_shared<MemoryDisk>();
    {
      auto opened = open();
      ASSERT_TRUE(store(*opened->file, a_record(3)).ok());
    }
    {
      auto files = std::make_shared<MemoryFiles>(disk_);
      auto opened = HeadFile::open(files, "./head", loop_);
      ASSERT_TRUE(opened.ok());
      files->fail_at(files->changes() + crash, true);
      EXPECT_EQ(store(*opened->file, a_record(4)).code(), Code::kIo);
    }
    auto again = open();
    ASSERT_TRUE(again.ok() && again->record) << crash;
    EXPECT_EQ(again->record->view, crash < 3 ? 3u : 4u);
  }
}

TEST_F(HeadFileTest, AFailedStoreLeavesTheRecordAndNoDraft) {
  for (int change = 1; change <= 2; ++change) {
    disk_ = std::make_shared<MemoryDisk>();
    auto files = std::make_shared<MemoryFiles>(disk_);
    auto opened = HeadFile::open(files, "./head", loop_);
    ASSERT_TRUE(store(*opened->file, a_record(3)).ok());
    files->fail_at(files->changes() + change, false);
    EXPECT_EQ(store(*opened->file, a_record(4)).code(), Code::kIo);
    EXPECT_EQ(disk_->files.count("./head.new"), 0u) << change;
    EXPECT_EQ(disk_->files.count("./head"), 1u) << change;
  }
}

TEST_F(HeadFileTest, DamagedAndForeignFilesAreRefused) {
  const std::vector<std::byte> whole = write_head_record(a_record());
  const auto text = [](std::span<const std::byte> bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const auto refused = [&](const std::string& content, const char* why) {
    disk_->files["./head"] = content;
    const auto opened = open();
    EXPECT_EQ(opened.status().code(), Code::kCorrupted) << why;
    EXPECT_EQ(opened.status().parameter(), "head_state");
    EXPECT_THAT(opened.status().message(), testing::AllOf(HasSubstr("'./head'"), HasSubstr(why)));
  };
  refused("", "it is not the state of a dsgd head");
  refused("a file of another program", "it is not the state of a dsgd head");
  std::string other = text(whole);
  other[std::string("dsgd head state ").size()] = '1';
  refused(other, "another version of dsgd has written it");
  for (size_t length = 17; length < whole.size(); length += 5)
    refused(text(std::span(whole).first(length)), "it is damaged");
  for (size_t at = 18; at < whole.size(); at += 3) {
    std::string flipped = text(whole);
    flipped[at] = static_cast<char>(flipped[at] ^ 4);
    refused(flipped, "it is damaged");
  }
  const auto refused_record = [&](const std::function<void(HeadRecord&)>& change, const char* why) {
    HeadRecord record = a_record();
    change(record);
    refused(text(write_head_record(record)), why);
  };
  const char* const unordered = "its workers are not numbered in order";
  refused_record([](HeadRecord& r) { r.workers[2].info.number = 1; }, unordered);
  refused_record([](HeadRecord& r) { r.workers[2].info.number = 3; }, unordered);
  refused_record([](HeadRecord& r) { r.workers[0].info.number = -1; }, unordered);
  refused_record([](HeadRecord& r) { r.workers.erase(r.workers.begin() + 1); },
                 unordered);  // it began with it
  refused_record([](HeadRecord& r) { r.workers[2].info.worker_id.clear(); }, "a worker has no id");
  refused_record([](HeadRecord& r) { r.joined = 1 << 30; }, "too many workers have joined its job");
  refused_record([](HeadRecord& r) { r.news[0].sequence = 6; }, "its news are not in order");
  refused_record([](HeadRecord& r) { r.num_workers = 4; }, "it lists fewer than num_workers workers");
}

TEST_F(HeadFileTest, MayLackWorkersThatWereLost) {
  HeadRecord record = a_record();
  record.joined = 9;
  record.workers[2].info.number = 7;
  auto read = read_head_file(write_head_record(record), "./head");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->joined, 9u);
  EXPECT_EQ(read->workers[2].info.number, 7);
}

}  // namespace
}  // namespace dsgd

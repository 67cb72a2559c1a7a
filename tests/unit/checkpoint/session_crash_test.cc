// A job that crashes at any operation on its files: another one loads a checkpoint and has the bits of the
// step at which it was taken. A disk that fails once costs one checkpoint and nothing else.

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/session/session.h"
#include "tests/unit/checkpoint/memory_files.h"
#include "tests/unit/checkpoint/with_files.h"
#include "transport/uv/environment.h"

namespace dsgd {
namespace {

using dsgd_test::MemoryDisk;
using dsgd_test::MemoryFiles;
using dsgd_test::WithFiles;

constexpr size_t kElements = 1000;

// One worker with adam, whose gradients depend on the step.
struct Trainer {
  explicit Trainer(const std::shared_ptr<transport::Files>& files, const std::string& interval = "2") {
    Config config;
    for (const auto& [key, value] : std::map<std::string, std::string>{
             {"checkpoint_dir", "dir"}, {"checkpoint_interval", interval}, {"checkpoint_keep", "2"}})
      EXPECT_TRUE(config.set(key, value).ok());
    auto opened = Session::open(config, std::make_unique<WithFiles>(transport::make_uv_environment(), files),
                                std::make_shared<Log>());
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    session = opened.value();
    const int64_t shape[] = {kElements};
    auto parameter = session->add_parameter("w", DType::kFloat32, shape, true);
    auto replica = session->add_replica("cpu");
    auto memory = session->alloc(replica.value(), parameter.value());
    value = static_cast<float*>(memory.value()->value);
    gradient = static_cast<float*>(memory.value()->gradient);
    EXPECT_TRUE(session->set_optimizer("adam", "").ok());
    EXPECT_TRUE(session->start().ok());
  }
  ~Trainer() { EXPECT_TRUE(session->close(std::chrono::seconds(10)).ok()); }  // the last save ends first
  void step() {
    const int64_t index = session->info().steps;
    for (size_t i = 0; i < kElements; ++i)
      gradient[i] = static_cast<float>((index * 7 + static_cast<int64_t>(i)) % 11 - 5);
    StepResult result;
    const Status status = session->step(1, &result);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  std::vector<float> values() const { return {value, value + kElements}; }
  Status load() {
    auto loading = session->load_checkpoint("", Session::Mode::kWait);
    return loading.ok() ? loading.value()->status() : loading.status();
  }

  std::shared_ptr<Session> session;
  float *value = nullptr, *gradient = nullptr;
};

TEST(CheckpointCrash, AtAnyOperationLeavesACheckpointThatContinuesWithTheSameBits) {
  constexpr int kSteps = 8;
  std::vector<std::vector<float>> undisturbed;  // after each step
  auto files = std::make_shared<MemoryFiles>(std::make_shared<MemoryDisk>());
  {
    Trainer trainer(files);
    for (int step = 0; step < kSteps; ++step) {
      trainer.step();
      undisturbed.push_back(trainer.values());
    }
  }
  const int changes = files->changes();
  ASSERT_GT(changes, 20);
  for (int change = 1; change <= changes; ++change) {
    SCOPED_TRACE("crash at change " + std::to_string(change));
    const auto disk = std::make_shared<MemoryDisk>();
    files = std::make_shared<MemoryFiles>(disk);
    files->fail_at(change, true);
    {
      Trainer trainer(files);  // what it does after the crash reaches no disk
      for (int step = 0; step < kSteps; ++step) trainer.step();
    }
    Trainer resumed(std::make_shared<MemoryFiles>(disk));
    const Status loaded = resumed.load();
    int64_t at = resumed.session->info().steps;
    if (loaded.code() == Code::kNotFound) {
      EXPECT_EQ(at, 0);
    } else {
      ASSERT_TRUE(loaded.ok()) << loaded.message();
      ASSERT_GE(at, 2);
      EXPECT_EQ(resumed.values(), undisturbed[static_cast<size_t>(at - 1)]);
    }
    for (; at < kSteps; ++at) resumed.step();
    EXPECT_EQ(resumed.values(), undisturbed.back());
  }
}

TEST(CheckpointCrash, ADiskThatFailsOnceCostsOneCheckpointOnly) {
  const auto disk = std::make_shared<MemoryDisk>();
  auto files = std::make_shared<MemoryFiles>(disk);
  Trainer trainer(files, "0");
  const auto save = [&] {
    auto saving = trainer.session->save_checkpoint("", Session::Mode::kWait);
    return saving.ok() ? saving.value()->status() : saving.status();
  };
  for (int change = 1; change < 8; ++change) {
    trainer.step();
    files->fail_at(files->changes() + change, false);
    const int before = files->changes();
    const Status failed = save();
    if (files->changes() - before < change) break;  // the save needs no more changes
    EXPECT_EQ(failed.code(), Code::kIo) << failed.message();
    EXPECT_EQ(failed.operation(), "dsgd_checkpoint_save");
    EXPECT_TRUE(save().ok()) << "after failure " << change;
  }
}

}  // namespace
}  // namespace dsgd

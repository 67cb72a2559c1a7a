// Checkpoints through the C ABI: a job that saves, ends and loads goes on with the bits of one that never
// stopped, whatever strategy and number of workers.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "job.h"
#include "tests/unit/sanitizer.h"

namespace dsgd_test::checkpoint_test {
namespace {

namespace fs = std::filesystem;

// A folder that is removed with all that is in it.
class Folder {
 public:
  Folder() {
    std::string made = (fs::temp_directory_path() / "dsgd-checkpoint-XXXXXX").string();
    if (!mkdtemp(made.data())) std::abort();
    path_ = made;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path(const std::string& inside = "") const {
    return inside.empty() ? path_ : path_ + '/' + inside;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

struct TensorSpec {
  const char* name;
  int32_t dtype;
  std::vector<int64_t> shape;
  uint32_t flags;
};

const std::vector<TensorSpec> kModel = {{"big", DSGD_FLOAT32, {300, 1000}, 0},  // more than one range of ps
                                        {"bias", DSGD_FLOAT64, {7}, 0},
                                        {"half", DSGD_FLOAT16, {33, 3}, 0},
                                        {"brain", DSGD_BFLOAT16, {257}, 0},
                                        {"empty", DSGD_FLOAT32, {0, 4}, 0},
                                        {"steps", DSGD_INT64, {}, DSGD_UNTRAINED},
                                        {"mean", DSGD_FLOAT32, {5}, DSGD_UNTRAINED}};

// A model whose gradients depend on its values, the step and the sample, so that an error of any bit spreads.
class Trainer {
 public:
  Trainer(dsgd_session* s, const std::vector<TensorSpec>& model = kModel) : session(s), model_(model) {}

  void build(const char* strategy, const char* optimizer, const char* options, int replicas = 1) {
    std::vector<dsgd_parameter*> parameters;
    for (const TensorSpec& tensor : model_) {
      dsgd_parameter* parameter = nullptr;
      DSGD_OK_OR_FAIL(dsgd_parameter_add(session, tensor.name, tensor.dtype, tensor.shape.data(),
                                         tensor.shape.size(), tensor.flags, &parameter, error_));
      parameters.push_back(parameter);
    }
    for (int r = 0; r < replicas; ++r) {
      dsgd_replica* replica = nullptr;
      DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
      for (size_t p = 0; p < model_.size(); ++p) {
        void *value = nullptr, *gradient = nullptr;
        DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameters[p], &value,
                                   model_[p].flags & DSGD_UNTRAINED ? nullptr : &gradient, error_));
        values_.push_back(value);
        gradients_.push_back(gradient);
        for (size_t i = 0; r == 0 && i < count(p); ++i)
          set(value, p, i, 0.5 + 0.25 * static_cast<double>(i % 7));
      }
    }
    DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, optimizer, options, error_));
    DSGD_OK_OR_FAIL(dsgd_strategy_set(session, strategy, nullptr, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_shard_new(session, 1000, 3, 0, &shard, error_));
  }
  ~Trainer() { dsgd_shard_free(shard); }

  // All replicas have the same gradient. Weights are whole and values are multiples of a power of two, so
  // that sums do not depend on the number of workers.
  void step() {
    int64_t indices[4];
    size_t drawn = 0;
    DSGD_OK_OR_FAIL(dsgd_shard_next(shard, indices, 4, &drawn, error_));
    for (size_t i = 0; i < drawn; ++i) samples.push_back(indices[i]);
    dsgd_session_info info;
    dsgd_session_info_init(&info, sizeof info);
    DSGD_OK_OR_FAIL(dsgd_session_info_read(session, &info, error_));
    for (size_t t = 0; t < values_.size(); ++t) {
      const size_t p = t % model_.size();
      for (size_t i = 0; i < count(p); ++i) {
        if (gradients_[t])
          set(gradients_[t], p, i,
              static_cast<double>((info.steps * 5 + static_cast<int64_t>(i)) % 9 - 4) / 8);
        else
          set(values_[t], p, i, static_cast<double>(info.steps + 1));
      }
    }
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
  }
  int64_t steps() const {
    dsgd_session_info info;
    dsgd_session_info_init(&info, sizeof info);
    EXPECT_EQ(dsgd_session_info_read(session, &info, nullptr), DSGD_OK);
    return info.steps;
  }
  uint64_t digest() const {
    uint64_t digest = 0;
    EXPECT_EQ(dsgd_digest(session, &digest, nullptr), DSGD_OK);
    return digest;
  }

  dsgd_session* const session;
  dsgd_shard* shard = nullptr;
  std::vector<int64_t> samples;

 private:
  size_t count(size_t p) const {
    size_t count = 1;
    for (const int64_t dimension : model_[p].shape) count *= static_cast<size_t>(dimension);
    return count;
  }
  void set(void* tensor, size_t p, size_t i, double value) const {
    const float narrow = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &narrow, sizeof bits);
    switch (model_[p].dtype) {
      case DSGD_FLOAT32:
        static_cast<float*>(tensor)[i] = narrow;
        break;
      case DSGD_FLOAT64:
        static_cast<double*>(tensor)[i] = value;
        break;
      case DSGD_FLOAT16:  // normal numbers with few digits
        static_cast<uint16_t*>(tensor)[i] = static_cast<uint16_t>(
            narrow == 0 ? 0
                        : ((bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff)));
        break;
      case DSGD_BFLOAT16:
        static_cast<uint16_t*>(tensor)[i] = static_cast<uint16_t>(bits >> 16);
        break;
      default:
        static_cast<int64_t*>(tensor)[i] = static_cast<int64_t>(value);
    }
  }

  const std::vector<TensorSpec> model_;
  std::vector<void*> values_, gradients_;
};

struct JobSpec {
  int workers = 1;
  const char *strategy = "allreduce", *optimizer = "sgd", *options = "lr=0.125 momentum=0.5";
  Settings settings = {};
  int replicas = 1;
};

// Runs `body` on every worker of such a job.
void train(const JobSpec& setup, const std::function<void(Trainer&, int)>& body,
           const std::vector<TensorSpec>& model = kModel) {
  run_job(setup.workers, setup.settings, [&](dsgd_session* session, int rank) {
    Trainer trainer(session, model);
    trainer.build(setup.strategy, setup.optimizer, setup.options, setup.replicas);
    if (!testing::Test::HasFatalFailure()) body(trainer, rank);
  });
}

void save(Trainer& trainer, const std::string& folder) {
  DSGD_OK_OR_FAIL(dsgd_checkpoint_save(trainer.session, folder.c_str(), nullptr, nullptr, error_));
}

void load(Trainer& trainer, const std::string& folder) {
  DSGD_OK_OR_FAIL(dsgd_checkpoint_load(trainer.session, folder.c_str(), nullptr, nullptr, error_));
}

constexpr int kBefore = 5, kAfter = 4;  // steps

// Digest after all steps, and samples of the last ones, of a job that never stops.
std::pair<uint64_t, std::vector<std::vector<int64_t>>> undisturbed(const JobSpec& setup) {
  std::pair<uint64_t, std::vector<std::vector<int64_t>>> result;
  result.second.resize(static_cast<size_t>(setup.workers));
  train(setup, [&](Trainer& trainer, int rank) {
    for (int step = 0; step < kBefore; ++step) trainer.step();
    trainer.samples.clear();
    for (int step = 0; step < kAfter; ++step) trainer.step();
    if (rank == 0) result.first = trainer.digest();
    result.second[static_cast<size_t>(rank)] = trainer.samples;
  });
  return result;
}

void expect_resumes(const JobSpec& before, const JobSpec& after) {
  const Folder folder;
  train(before, [&](Trainer& trainer, int) {
    for (int step = 0; step < kBefore; ++step) trainer.step();
    save(trainer, folder.path());
    trainer.step();  // is not in the checkpoint
  });
  const auto [digest, samples] = undisturbed(after);
  train(after, [&, &digest = digest, &samples = samples](Trainer& trainer, int rank) {
    load(trainer, folder.path());
    EXPECT_EQ(dsgd_step_flush(trainer.session, nullptr), DSGD_ERR_STATE) << "no step was begun since";
    EXPECT_EQ(trainer.steps(), kBefore);
    for (int step = 0; step < kAfter; ++step) trainer.step();
    EXPECT_EQ(trainer.digest(), digest);
    if (before.workers == after.workers) {
      EXPECT_EQ(trainer.samples, samples[static_cast<size_t>(rank)]);
    }
  });
}

TEST(Checkpoint, ResumesWithTheSameBitsUnderEveryStrategyAndOptimizer) {
  Thinned cases(3, 7);
  for (const char* strategy : {"allreduce", "ps", "simple"}) {
    for (const auto& [optimizer, options] :
         std::vector<std::pair<const char*, const char*>>{{"sgd", "lr=0.125"},
                                                          {"sgd", "lr=0.125 momentum=0.5"},
                                                          {"adam", "lr=0.01"},
                                                          {"adamw", "lr=0.01 amsgrad=1"},
                                                          {"none", ""}}) {
      for (const int workers : {1, 2}) {
        if (cases.skip_next()) continue;
        SCOPED_TRACE(std::string(strategy) + ", " + optimizer + ' ' + options + ", " +
                     std::to_string(workers));
        const JobSpec setup{workers, strategy, optimizer, options};
        expect_resumes(setup, setup);
      }
    }
  }
}

TEST(Checkpoint, IsReadableByAnyNumberOfWorkersUnderAnyStrategy) {
  const Settings copies = {{"copies", "2"}};
  const JobSpec saved[] = {{3, "ps", "adam", "lr=0.01"},
                           {3, "ps", "adam", "lr=0.01", copies},
                           {2, "allreduce", "adam", "lr=0.01"}};
  const JobSpec loaded[] = {{1, "simple", "adam", "lr=0.01"},
                            {2, "ps", "adam", "lr=0.01", {}, 2},
                            {4, "ps", "adam", "lr=0.01", copies},
                            {4, "allreduce", "adam", "lr=0.01"}};
  Thinned cases(1, 5);
  for (const JobSpec& before : saved) {
    for (const JobSpec& after : loaded) {
      if (cases.skip_next()) continue;
      SCOPED_TRACE(std::string(before.strategy) + " to " + after.strategy);
      expect_resumes(before, after);
    }
  }
}

TEST(Checkpoint, KeepsADynamicLossScaleAndTheLearningRate) {
  const Folder folder;
  const JobSpec setup{2, "allreduce", "sgd", "lr=0.125", {{"loss_scale", "dynamic"}}};
  double scale = 0;
  train(setup, [&](Trainer& trainer, int rank) {
    trainer.step();
    DSGD_OK_OR_FAIL(dsgd_learning_rate_set(trainer.session, 0.0625, error_));
    save(trainer, folder.path());
    if (rank == 0) scale = dsgd_loss_scale(trainer.session);
  });
  EXPECT_NE(read_file(folder.path("step-0000000001/manifest.json")).find("\"learning_rate\":0.0625"),
            std::string::npos);
  train(setup, [&](Trainer& trainer, int) {
    load(trainer, folder.path());
    EXPECT_EQ(dsgd_loss_scale(trainer.session), scale);
    save(trainer, folder.path("again"));
  });
  EXPECT_NE(read_file(folder.path("again/step-0000000001/manifest.json")).find("\"learning_rate\":0.0625"),
            std::string::npos);
}

TEST(Checkpoint, StepsGoOnWhileItIsWritten) {
  const Folder folder;
  const JobSpec setup{2};
  uint64_t digest = 0;
  train(setup, [&](Trainer& trainer, int rank) {
    for (int step = 0; step < kBefore; ++step) trainer.step();
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_checkpoint_save(trainer.session, folder.path().c_str(), nullptr, &op, error_));
    if (rank == 0) digest = trainer.digest();
    trainer.step();
    trainer.step();
    DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
    dsgd_op_free(op);
  });
  train(setup, [&](Trainer& trainer, int) {
    load(trainer, folder.path());
    EXPECT_EQ(trainer.digest(), digest);
  });
}

TEST(Checkpoint, IsSavedByIntervalAndOldOnesGo) {
  const Folder folder;
  const JobSpec setup{
      2,
      "ps",
      "sgd",
      "lr=0.125 momentum=0.5",
      {{"checkpoint_dir", folder.path()}, {"checkpoint_interval", "2"}, {"checkpoint_keep", "2"}}};
  std::vector<uint64_t> digests;
  train(setup, [&](Trainer& trainer, int rank) {
    for (int step = 1; step <= 9; ++step) {
      trainer.step();
      if (rank == 0) digests.push_back(trainer.digest());
    }
  });
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"step-0000000006", "step-0000000008"}));
  train(setup, [&](Trainer& trainer, int) {
    DSGD_OK_OR_FAIL(dsgd_checkpoint_load(trainer.session, nullptr, nullptr, nullptr, error_));
    EXPECT_EQ(trainer.steps(), 8);
    EXPECT_EQ(trainer.digest(), digests[7]);
  });
}

void draw(Trainer& trainer, size_t most) {
  std::vector<int64_t> indices(most);
  size_t drawn = 0;
  DSGD_OK_OR_FAIL(dsgd_shard_next(trainer.shard, indices.data(), most, &drawn, error_));
  trainer.samples.insert(trainer.samples.end(), indices.begin(),
                         indices.begin() + static_cast<ptrdiff_t>(drawn));
}

TEST(Checkpoint, ShardsGoOnWithAnotherNumberOfWorkers) {
  const Folder folder;
  std::mutex mutex;
  std::multiset<int64_t> used;
  train({2}, [&](Trainer& trainer, int rank) {
    DSGD_OK_OR_FAIL(dsgd_shard_epoch(trainer.shard, 7, error_));
    for (int step = 0; step < kBefore; ++step) trainer.step();
    if (rank == 1) draw(trainer, 41);
    save(trainer, folder.path());
    std::lock_guard lock(mutex);
    used.insert(trainer.samples.begin(), trainer.samples.end());
  });
  const size_t before = used.size();
  EXPECT_EQ(before, 2u * 4 * kBefore + 41);
  train({3}, [&](Trainer& trainer, int) {
    load(trainer, folder.path());
    EXPECT_EQ(dsgd_shard_current_epoch(trainer.shard), 7u);
    EXPECT_EQ(dsgd_shard_position(trainer.shard), before);
    draw(trainer, 1000);
    std::lock_guard lock(mutex);
    used.insert(trainer.samples.begin(), trainer.samples.end());
  });
  EXPECT_EQ(used.size(), 1000u);
  EXPECT_EQ(std::set<int64_t>(used.begin(), used.end()).size(), 1000u);
}

void expect_load_fails(const JobSpec& setup, const std::string& folder, int32_t code,
                       const std::vector<std::string>& texts, const std::vector<TensorSpec>& model = kModel) {
  train(
      setup,
      [&](Trainer& trainer, int) {
        const uint64_t before = trainer.digest();
        Error error;
        EXPECT_EQ(dsgd_checkpoint_load(trainer.session, folder.c_str(), nullptr, nullptr, error), code)
            << error.message();
        for (const std::string& text : texts)
          EXPECT_NE(error.message().find(text), std::string::npos) << error.message();
        EXPECT_EQ(trainer.digest(), before);
        trainer.step();
      },
      model);
}

TEST(Checkpoint, ThatDoesNotFitIsRefusedByName) {
  const Folder folder;
  train({2}, [&](Trainer& trainer, int) { save(trainer, folder.path()); });
  auto other = kModel;
  other[1].shape = {8};
  expect_load_fails({2}, folder.path(), DSGD_ERR_MISMATCH,
                    {"'bias'", "float64 [8] here", "float64 [7] there"}, other);
  other = kModel;
  other[2].dtype = DSGD_FLOAT32;
  expect_load_fails({2}, folder.path(), DSGD_ERR_MISMATCH, {"'half' is float32"}, other);
  other = kModel;
  other[3].name = "brian";
  expect_load_fails({1}, folder.path(), DSGD_ERR_MISMATCH, {"no parameter 'brian'"}, other);
  other.erase(other.begin() + 3);
  expect_load_fails({1}, folder.path(), DSGD_ERR_MISMATCH, {"parameter 'brain' that is not registered"},
                    other);
  expect_load_fails({2, "ps", "adam", ""}, folder.path(), DSGD_ERR_MISMATCH, {"'adam' here", "'sgd' there"});
}

TEST(Checkpoint, FromAFolderWithoutOneIsNotFound) {
  const Folder folder;
  expect_load_fails({2}, folder.path(), DSGD_ERR_NOT_FOUND, {"has no checkpoint"});
  expect_load_fails({1}, folder.path("nothing"), DSGD_ERR_NOT_FOUND, {folder.path("nothing")});
  fs::create_directory(folder.path("step-0000000001"));
  expect_load_fails({1}, folder.path(), DSGD_ERR_NOT_FOUND, {"has no checkpoint"});
}

// The host goes on without a checkpoint after DSGD_ERR_NOT_FOUND, so this must be another error.
TEST(Checkpoint, InAFolderThatSomeWorkersDoNotSeeIsAMismatch) {
  const Folder folder;
  train({2}, [&](Trainer& trainer, int) { save(trainer, folder.path()); });
  for (int blind : {0, 1}) {
    train({2}, [&](Trainer& trainer, int rank) {
      Error error;
      const std::string path = rank == blind ? folder.path("nothing") : folder.path();
      EXPECT_EQ(dsgd_checkpoint_load(trainer.session, path.c_str(), nullptr, nullptr, error),
                DSGD_ERR_MISMATCH);
      EXPECT_EQ(error.rank(), blind);
      EXPECT_NE(error.message().find("others find a checkpoint"), std::string::npos) << error.message();
    });
  }
}

TEST(Checkpoint, FromAFileIsAnError) {
  const Folder folder;
  write_file(folder.path("file"), "");
  expect_load_fails({1}, folder.path("file"), DSGD_ERR_IO, {"give the path of a folder"});
}

TEST(Checkpoint, ThatIsDamagedIsRefusedAndTheFileNamed) {
  const Folder folder;
  train({2}, [&](Trainer& trainer, int) {
    save(trainer, folder.path());
    trainer.step();
    save(trainer, folder.path());
  });
  const std::string newest = folder.path("step-0000000001/");
  const std::string shard = newest + "shard-00001-of-00002.safetensors", manifest = newest + "manifest.json";
  const std::string shard_bytes = read_file(shard), manifest_bytes = read_file(manifest);
  std::string damaged = shard_bytes;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write_file(shard, damaged);
  expect_load_fails({2}, folder.path(), DSGD_ERR_IO, {shard, "does not match its checksum"});
  for (const size_t at : {size_t{0}, size_t{7}, size_t{8}, size_t{20}}) {  // of the header
    damaged = shard_bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    write_file(shard, damaged);
    expect_load_fails({1}, folder.path(), DSGD_ERR_IO, {shard});
  }
  write_file(shard, shard_bytes.substr(0, shard_bytes.size() / 2));
  expect_load_fails({2}, folder.path(), DSGD_ERR_IO, {shard, "the manifest says"});
  fs::remove(shard);
  expect_load_fails({2}, folder.path(), DSGD_ERR_IO, {shard, "the file is missing"});
  write_file(shard, shard_bytes);
  damaged = manifest_bytes;
  damaged[damaged.find("\"step\":1") + 7] = '2';
  write_file(manifest, damaged);
  expect_load_fails({2}, folder.path(), DSGD_ERR_IO, {manifest, "does not match its checksum"});
  train({2}, [&](Trainer& trainer, int) {
    load(trainer, folder.path("step-0000000000"));  // the earlier one is whole
    EXPECT_EQ(trainer.steps(), 0);
  });
}

TEST(Checkpoint, OfAStepThatIsNotLaterIsRefusedOnAllWorkers) {
  const Folder folder;
  train({2}, [&](Trainer& trainer, int) {
    save(trainer, folder.path());
    Error error;
    EXPECT_EQ(dsgd_checkpoint_save(trainer.session, folder.path().c_str(), nullptr, nullptr, error),
              DSGD_ERR_EXISTS);
    EXPECT_EQ(error.rank(), 0);
    EXPECT_NE(error.message().find("has a checkpoint of step 0"), std::string::npos) << error.message();
    trainer.step();
    save(trainer, folder.path());
  });
}

TEST(Checkpoint, AFolderThatCannotBeMadeIsAnErrorOnAllWorkers) {
  const Folder folder;
  write_file(folder.path("file"), "");
  train({2}, [&](Trainer& trainer, int) {
    Error error;
    const std::string path = folder.path("file/inside");
    EXPECT_NE(dsgd_checkpoint_save(trainer.session, path.c_str(), nullptr, nullptr, error), DSGD_OK);
    EXPECT_NE(error.message().find("cannot make the folder '" + folder.path("file")), std::string::npos)
        << error.message();
    EXPECT_EQ(error.rank(), 0);
    trainer.step();
  });
}

TEST(Checkpoint, WorkersThatSaveAtDifferentStepsAreToldSo) {
  const Folder folder;
  train({2}, [&](Trainer& trainer, int rank) {
    if (rank == 0) trainer.step();
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_checkpoint_save(trainer.session, folder.path().c_str(), nullptr, &op, error_));
    if (rank == 1) trainer.step();
    Error error;
    EXPECT_EQ(dsgd_op_wait(op, -1, error), DSGD_ERR_MISMATCH);
    EXPECT_NE(error.message().find("it saves after 0 steps, but rank 0 after 1"), std::string::npos)
        << error.message();
    dsgd_op_free(op);
    trainer.step();
  });
}

TEST(Checkpoint, RepairsATornSession) {
  const Folder folder;
  const JobSpec setup{2, "allreduce", "sgd", "lr=0.125 momentum=0.5"};
  const auto [digest, samples] = undisturbed(setup);
  train(setup, [&, &digest = digest](Trainer& trainer, int rank) {
    for (int step = 0; step < kBefore; ++step) trainer.step();
    save(trainer, folder.path());
    dsgd_op_options options = with_timeout(200);
    dsgd_op* op = nullptr;  // no gradient is marked, so the step times out
    DSGD_OK_OR_FAIL(dsgd_step_begin(trainer.session, 1, &options, &op, error_));
    EXPECT_EQ(dsgd_op_wait(op, -1, nullptr), DSGD_ERR_TIMEOUT);
    dsgd_op_free(op);
    EXPECT_EQ(dsgd_step(trainer.session, 1, nullptr, nullptr), DSGD_ERR_TORN) << rank;
    load(trainer, folder.path());
    for (int step = 0; step < kAfter; ++step) trainer.step();
    EXPECT_EQ(trainer.digest(), digest);
  });
}

// Worker 1 is late with the save that the first one of worker 0 is.
TEST(Checkpoint, ASaveThatWaitsForAnEarlierOneEndsAtItsDeadline) {
  const Folder folder;
  train({2}, [&](Trainer& trainer, int rank) {
    const dsgd_op_options short_time = with_timeout(300);
    dsgd_op *first = nullptr, *second = nullptr;
    Error error;
    if (rank == 0) {
      DSGD_OK_OR_FAIL(
          dsgd_checkpoint_save(trainer.session, folder.path("a").c_str(), nullptr, &first, error_));
      DSGD_OK_OR_FAIL(
          dsgd_checkpoint_save(trainer.session, folder.path("b").c_str(), &short_time, &second, error_));
      int32_t ended = 1;
      EXPECT_EQ(dsgd_op_test(first, &ended, nullptr), DSGD_OK);
      EXPECT_EQ(ended, 0);
      EXPECT_EQ(dsgd_op_wait(second, 0, error), DSGD_ERR_TIMEOUT);
      EXPECT_NE(error.message().find("dsgd_checkpoint_save has not begun within timeout = 300 ms"),
                std::string::npos)
          << error.message();
      DSGD_OK_OR_FAIL(dsgd_barrier(trainer.session, nullptr, nullptr, nullptr, error_));
      DSGD_OK_OR_FAIL(dsgd_op_wait(first, -1, error_));
      dsgd_op_free(first);
      dsgd_op_free(second);
    } else {
      DSGD_OK_OR_FAIL(dsgd_barrier(trainer.session, nullptr, nullptr, nullptr, error_));
      save(trainer, folder.path("a"));
      EXPECT_EQ(dsgd_checkpoint_save(trainer.session, folder.path("b").c_str(), nullptr, nullptr, error),
                DSGD_ERR_MISMATCH);
      EXPECT_NE(error.message().find("has not begun within"), std::string::npos) << error.message();
    }
    trainer.step();
    save(trainer, folder.path("c"));
  });
}

// The second save of worker 0 ends only after worker 1 has joined its barrier.
TEST(Checkpoint, ASaveThatWaitsDoesNotKeepOtherThreadsFromBeginningOperations) {
  const Folder folder;
  train({2}, [&](Trainer& trainer, int rank) {
    const auto meet = [&] {
      dsgd_op_options options = with_timeout(-1);
      options.channel = 1;
      dsgd_op* op = nullptr;
      DSGD_OK_OR_FAIL(dsgd_barrier(trainer.session, nullptr, &options, &op, error_));
      DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
      dsgd_op_free(op);
    };
    const auto save_twice = [&] {
      for (const char* name : {"a", "b"}) {
        dsgd_op* op = nullptr;
        DSGD_OK_OR_FAIL(
            dsgd_checkpoint_save(trainer.session, folder.path(name).c_str(), nullptr, &op, error_));
        dsgd_op_free(op);
      }
    };
    if (rank == 0) {
      std::thread saving(save_twice);
      std::this_thread::sleep_for(
          std::chrono::milliseconds(100));  // most often within the second save by then
      meet();
      saving.join();
    } else {
      meet();
      save_twice();
    }
    trainer.step();
  });
}

}  // namespace
}  // namespace dsgd_test::checkpoint_test

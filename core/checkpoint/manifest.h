// The manifest of a checkpoint: one JSON object that says what was saved and in which files. Its last field
// is the checksum of the text before it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "transport/base/status.h"
#include "transport/payloads.h"

namespace dsgd::checkpoint {

inline constexpr uint64_t kLargestManifest = 100 << 20;  // bytes
inline constexpr uint64_t kFormatVersion = 1;

struct Manifest {
  struct Parameter {
    std::string name;
    DType dtype = DType::kFloat32;
    std::vector<int64_t> shape;
    bool trained = true;
    uint64_t updates = 0;
    bool operator==(const Parameter&) const = default;
  };
  // A data shard of the job, with W = `workers`. Worker r draws the positions of runs[r], then the positions
  // begin + r, begin + r + W, ... It has drawn drawn[r] of the latter.
  struct Shard {
    uint64_t samples = 0, seed = 0, epoch = 0, begin = 0;
    bool shuffle = true;
    std::vector<uint64_t> drawn;
    std::vector<std::vector<transport::SampleRun>> runs;
    bool operator==(const Shard&) const = default;
  };
  struct File {
    std::string name;
    uint64_t nbytes = 0, checksum = 0;  // XXH3, 64 bits
    bool operator==(const File&) const = default;
  };
  std::string library;
  uint64_t step = 0;  // steps made
  int64_t view = 0;
  int32_t workers = 0;
  std::string strategy, optimizer;  // with their options
  double learning_rate = 0;
  double loss_scale = 1;
  uint64_t loss_scale_steps = 0;  // since it has changed
  std::vector<Parameter> parameters;
  std::vector<Shard> shards;
  std::vector<File> files;
  bool operator==(const Manifest&) const = default;
};

std::string write_manifest(const Manifest& manifest);
Result<Manifest> read_manifest(std::string_view text);

}  // namespace dsgd::checkpoint

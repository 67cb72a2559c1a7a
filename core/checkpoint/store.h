// The folder of a job's checkpoints. All functions block; they run on the thread of Files::run.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/checkpoint/manifest.h"
#include "transport/files.h"

namespace dsgd::checkpoint {

std::string file_name(int32_t rank, int32_t workers);  // "shard-00000-of-00004.safetensors"

class Store {
 public:
  Store(transport::Files& files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  std::string path(uint64_t step) const;  // "DIR/step-0000001200"
  // Before a save, by one worker: removes what interrupted saves have left, and makes the folder of `step`.
  // kExists if there is a checkpoint of this or a later step.
  Status prepare(uint64_t step);
  // Writes one file of a checkpoint; returns its size and checksum.
  Result<Manifest::File> write_file(uint64_t step, const std::string& name,
                                    std::span<const std::span<const std::byte>> parts);
  // By one worker, when all files are written: from then on the checkpoint exists. kExists if it exists, or
  // if the files have been changed.
  Status publish(const Manifest& manifest);
  // Removes all but the newest `keep` checkpoints up to `step`; 0 keeps all.
  Status retain(uint64_t keep, uint64_t step);

  // A checkpoint to load.
  struct Found {
    std::string path;
    uint64_t checksum = 0;  // of the manifest's text
    Manifest manifest;
  };
  // The newest one in the folder, or the folder itself if it is a checkpoint. kNotFound if there is none.
  Result<Found> find();

 private:
  struct Entry {
    uint64_t step;
    std::string path;
    bool whole;  // it has a manifest
  };
  Result<std::vector<Entry>> entries();  // by step
  Status remove(const Entry& entry);
  Status check_unchanged(const std::string& folder, const Manifest& manifest);

  transport::Files& files_;
  const std::string folder_;
};

}  // namespace dsgd::checkpoint

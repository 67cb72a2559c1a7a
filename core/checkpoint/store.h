// The folder of a job's checkpoints. All functions block; they run on the thread of Files::run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "transport/files.h"

namespace dsgd::checkpoint {

std::string file_name(int32_t rank, int32_t workers);  // "shard-00000-of-00004.safetensors"

// One attempt to save a step. `number` differs from those of all other attempts, also of other jobs: a worker
// that was stopped may go on when the job has taken it out and saves the step anew.
struct Draft {
  uint64_t step = 0, number = 0;
};

// A checkpoint is written to a folder that only its draft has, and exists once that folder is renamed. A
// folder is renamed also before its files are removed. Since a rename succeeds for one worker only, a worker
// that goes on late can neither publish a draft that is being removed nor change a checkpoint.
class Store {
 public:
  Store(transport::Files& files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  std::string path(uint64_t step) const;  // "DIR/step-0000001200"
  // Before a save, by one worker: removes what interrupted saves and removals have left, as far as that is
  // possible, and makes the draft's folder.
  // kExists if there is a checkpoint of this or a later step.
  Status prepare(const Draft& draft);
  // Writes one file of a checkpoint; returns its size and checksum.
  Result<Manifest::File> write_file(const Draft& draft, const std::string& name,
                                    std::span<const std::span<const std::byte>> parts);
  // By one worker, when all files are written: from then on the checkpoint exists. kExists if another one of
  // the step exists, or if the draft was removed.
  Status publish(const Draft& draft, const Manifest& manifest);
  // Removes all but the newest `keep` checkpoints up to `step`; 0 keeps all. If one cannot be removed, it
  // goes on with the others and returns the first error.
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
  struct Contents {
    std::vector<uint64_t> steps;  // of the checkpoints, in ascending order
    // Paths of folders to be removed: drafts, and removals that have not ended.
    std::vector<std::string> leftovers;
  };
  std::string path(const Draft& draft) const;
  Result<Contents> contents();
  Status remove(const std::string& path);

  transport::Files& files_;
  const std::string folder_;
};

}  // namespace dsgd::checkpoint

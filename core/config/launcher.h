// Launchers of other projects (torchrun, PyTorchJob, mpirun, srun): what their environment says about a
// process that they started.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "transport/base/status.h"

namespace dsgd::config {

using Variables = std::map<std::string, std::string, std::less<>>;

// The place of this process in the job that its launcher started.
struct Launch {
  std::string launcher;  // for messages: "torchrun"
  int64_t rank = 0, size = 1;
  std::string rank_variable;     // "RANK"
  std::string size_variable;     // "WORLD_SIZE"
  std::string host;              // of rank 0, the loopback address if the job has one host; "": not known
  int64_t port = 0;              // derived; equal on all workers; 0: not known
  std::string no_host, no_port;  // for messages: why it is not known, and the variable to set
  std::string job;               // differs from one start to the next
};

// Nothing if no known launcher started this process as one of several. Where launchers are nested, the
// innermost that started several counts. The rank may be too high for the size. `launcher_process` names the
// local process of the launcher, "" if it is not known.
Result<std::optional<Launch>> find_launch(const Variables& variables, const std::string& launcher_process);

// A warning if a launcher that dsgd does not understand seems to have started several processes, or has
// started rank 0 of an unknown number, else "".
std::string unknown_launcher_warning(const Variables& variables);

// A launcher that has started several processes, of which this is one.
struct Starter {
  std::string launcher, evidence;  // "torchrun", "WORLD_SIZE=2"
  bool understood = false;         // by find_launch()
};

// Returns the launcher that started several copies of this process. `dsgd run` warns of it. Ignores
// SLURM_NTASKS, which a batch script that runs once has, too.
std::optional<Starter> find_starter(const Variables& variables);

// First host of Slurm's list, for example "rack01-n7" of "rack[01-03]-n[7,9],login".
std::string first_slurm_host(std::string_view nodes);

}  // namespace dsgd::config

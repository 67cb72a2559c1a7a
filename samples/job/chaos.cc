#include "chaos.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace job {
namespace {

// The child of the launcher that runs the worker with this rank; -1: there is none.
pid_t process_of(pid_t launcher, size_t rank) {
  const std::string variable = std::string("DSGD_RANK=") + std::to_string(rank);
  std::error_code gone;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/" + std::to_string(launcher) + "/task", gone)) {
    std::ifstream children(thread.path() / "children");
    for (pid_t process; children >> process;) {
      std::ifstream file("/proc/" + std::to_string(process) + "/environ", std::ios::binary);
      const std::string environment = '\0' + std::string(std::istreambuf_iterator<char>(file), {});
      if (environment.find('\0' + variable + '\0') != std::string::npos) return process;
    }
  }
  return -1;
}

std::string name_of(size_t rank, const Worker& worker) {
  return "worker " + std::to_string(rank) + " (" + worker.language + ")";
}

}  // namespace

std::vector<std::string> Chaos::on_epoch(size_t rank, const std::vector<Worker>& workers, pid_t launcher) {
  std::vector<std::string> news;
  away_.resize(workers.size());
  const int epoch = workers[rank].epoch;
  if (away_[rank]) {
    away_[rank] = false;
    events_.push_back({static_cast<double>(epoch), false});
    news.push_back("joined in place of a killed one: " + name_of(rank, workers[rank]) +
                   ", which has ended epoch " + std::to_string(epoch));
  }
  if (killed_ == kills_ || epoch * 3 * (kills_ + 1) < epochs_ * 2 * (killed_ + 1)) return news;
  const size_t victim = static_cast<size_t>(killed_ + 1) % workers.size();
  const pid_t process = process_of(launcher, victim);
  if (away_[victim] || workers[victim].epoch == 0 || process < 0) return news;  // with the next epoch
  kill(process, SIGKILL);
  ++killed_;
  away_[victim] = true;
  events_.push_back({static_cast<double>(epoch), true});
  news.push_back("killed: " + name_of(victim, workers[victim]));
  return news;
}

}  // namespace job

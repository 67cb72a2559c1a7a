// Kills workers of a job while they train. `dsgd run` starts another one in place of each, which joins the
// job.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "display.h"
#include "plot.h"

namespace job {

class Chaos {
 public:
  // Kills `kills` workers, one after another, in the first two thirds of the epochs. Rank 1 is the first.
  Chaos(int kills, int epochs) : kills_(kills), epochs_(epochs) {}

  // A worker has ended an epoch. Returns what there is to tell, line by line. `launcher`: the process of
  // `dsgd run`.
  std::vector<std::string> on_epoch(size_t rank, const std::vector<Worker>& workers, pid_t launcher);
  const std::vector<Event>& events() const { return events_; }  // for the plot

 private:
  const int kills_, epochs_;
  int killed_ = 0;
  std::vector<char> away_;  // by rank: killed, and no epoch has been reported since
  std::vector<Event> events_;
};

}  // namespace job

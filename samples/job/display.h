// The display of a job while it runs: a line per worker, redrawn on a terminal, else a plain line per epoch.
#pragma once

#include <string>
#include <vector>

namespace job {

struct Worker {
  std::string language, device;
  int epoch = 0;  // 0: nothing has been reported
  double loss = 0, accuracy = 0, speed = 0;
  std::string digest;
};

class Display {
 public:
  // Without cursor control where standard output is no terminal, or one that TERM calls dumb. Colours are not
  // used, so that NO_COLOR holds.
  Display(const std::vector<Worker>& workers, int epochs);

  void update(size_t rank);
  void message(const std::string& text);  // above the lines

 private:
  void draw();
  void erase();
  std::string line(size_t rank, int columns) const;
  std::string summary(size_t first) const;

  const std::vector<Worker>& workers_;
  const int epochs_;
  const bool redraws_;
  int device_width_ = 0;
  size_t drawn_ = 0;  // lines
};

}  // namespace job

#include "display.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

namespace job {
namespace {

bool can_redraw() {
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) && term && *term && std::strcmp(term, "dumb") != 0;
}

winsize terminal_size() {
  winsize size{};
  ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  if (size.ws_col == 0) size.ws_col = 80;
  if (size.ws_row == 0) size.ws_row = 24;
  return size;
}

template <typename... Values>
std::string formatted(const char* format, Values... values) {
  char text[64];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// A value's place before the first report: the format's width with a dash at its end.
std::string dash(int width) { return std::string(static_cast<size_t>(width - 1), ' ') + "\u2013"; }

}  // namespace

Display::Display(const std::vector<Worker>& workers, int epochs)
    : workers_(workers), epochs_(epochs), redraws_(can_redraw()) {
  for (const Worker& worker : workers)
    device_width_ = std::max(device_width_, static_cast<int>(worker.device.size()));
  if (redraws_) draw();
}

void Display::update(size_t rank) {
  if (!redraws_) {
    std::cout << line(rank, INT_MAX) << std::endl;
  } else {
    draw();
  }
}

void Display::message(const std::string& text) {
  erase();
  std::cout << text << std::endl;
  if (redraws_) draw();
}

void Display::erase() {
  if (drawn_) std::cout << "\033[" << drawn_ << "A\033[J";
  drawn_ = 0;
}

// The cursor's row is left free. Where there are more workers than rows, the last row sums up the others.
void Display::draw() {
  const winsize size = terminal_size();
  const size_t rows = std::max(size.ws_row - 1, 2);
  const size_t shown = workers_.size() <= rows ? workers_.size() : rows - 1;
  erase();
  // Not wrapped at the edge: a line that goes on in the next one could not be redrawn.
  std::cout << "\033[?7l";
  for (size_t rank = 0; rank < shown; ++rank) std::cout << line(rank, size.ws_col) << '\n';
  if (shown < workers_.size()) std::cout << summary(shown) << '\n';
  std::cout << "\033[?7h" << std::flush;
  drawn_ = std::min(shown + 1, workers_.size());
}

std::string Display::line(size_t rank, int columns) const {
  const Worker& worker = workers_[rank];
  const bool known = worker.epoch > 0;
  struct Column {
    std::string text;
    int width;     // in characters
    int priority;  // the highest number is dropped first
    bool shown = false;
  };
  const int epoch_width = std::max(3, static_cast<int>(std::to_string(epochs_).size()));
  const std::string of = "/" + std::to_string(epochs_),
                    percent = known ? formatted("%6.2f", worker.accuracy) : dash(6);
  const int rank_width = static_cast<int>(std::to_string(workers_.size() - 1).size());
  Column all[] = {
      {formatted("rank %*zu %-6s", rank_width, rank, worker.language.c_str()), 12 + rank_width, 0},
      {formatted("  %-*s", device_width_, worker.device.c_str()), 2 + device_width_, 5},
      {"  epoch " + (known ? formatted("%*d", epoch_width, worker.epoch) : dash(epoch_width)) + of,
       8 + epoch_width + static_cast<int>(of.size()), 1},
      {"  loss " + (known ? formatted("%.4f", worker.loss) : dash(6)), 13, 3},
      {"  test accuracy", 15, 4},
      {" " + percent + " %", 9, 2},
      {"  " + (known ? formatted("%8.0f", worker.speed) : dash(8)) + " samples/s", 20, 6},
  };
  for (int priority = 0; priority < static_cast<int>(std::size(all)); ++priority) {
    Column& column = *std::find_if(std::begin(all), std::end(all),
                                   [&](const Column& c) { return c.priority == priority; });
    if (priority > 0 && column.width > columns) break;
    column.shown = true;
    columns -= column.width;
  }
  std::string text;
  for (const Column& column : all)
    if (column.shown) text += column.text;
  return text;
}

std::string Display::summary(size_t first) const {
  const auto [least, most] =
      std::minmax_element(workers_.begin() + static_cast<std::ptrdiff_t>(first), workers_.end(),
                          [](const Worker& a, const Worker& b) { return a.epoch < b.epoch; });
  const std::string low = std::to_string(least->epoch), high = std::to_string(most->epoch);
  return "and " + std::to_string(workers_.size() - first) + " more: epoch " +
         (low == high ? low : low + "\u2013" + high) + "/" + std::to_string(epochs_);
}

}  // namespace job

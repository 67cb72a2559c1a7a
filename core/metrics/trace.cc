#include "core/metrics/trace.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

namespace dsgd::metrics {

Trace::Trace(size_t capacity) : capacity_(capacity), slots_(capacity ? new Slot[capacity]() : nullptr) {}

// A sequence lock for the whole ring. The writer announces a span in begun_ before it writes the words. A
// reader that has loaded a word of a newer span therefore also loads the newer begun_, and drops the span.
void Trace::record(const Span& span) {
  if (capacity_ == 0) return;
  const uint64_t index = written_.load(std::memory_order_relaxed);
  const auto words = std::bit_cast<Words>(span);
  Slot& slot = slots_[index % capacity_];
  begun_.store(index + 1, std::memory_order_relaxed);
  for (size_t i = 0; i < words.size(); ++i) slot[i].store(words[i], std::memory_order_release);
  written_.store(index + 1, std::memory_order_release);
}

std::vector<Span> Trace::spans() const {
  const uint64_t end = written_.load(std::memory_order_acquire);
  const uint64_t first = end > capacity_ ? end - capacity_ : 0;
  std::vector<Span> spans;
  spans.reserve(end - first);
  for (uint64_t index = first; index < end; ++index) {
    Words words;
    const Slot& slot = slots_[index % capacity_];
    for (size_t i = 0; i < words.size(); ++i) words[i] = slot[i].load(std::memory_order_acquire);
    spans.push_back(std::bit_cast<Span>(words));
  }
  const uint64_t begun = begun_.load(std::memory_order_relaxed);
  // The oldest span that no later one has begun to replace.
  const uint64_t oldest = begun > capacity_ ? begun - capacity_ : 0;
  if (oldest > first)
    spans.erase(spans.begin(), spans.begin() + static_cast<ptrdiff_t>(std::min(oldest, end) - first));
  return spans;
}

namespace {

// A row of the timeline: track, index, and number of the row among those of the track and index. The spans of
// a row do not overlap.
using Row = std::tuple<Track, uint32_t, size_t>;

// Puts a span into the first row of its track that is free when the span begins. Spans of steps nest, so they
// share one row.
class Rows {
 public:
  Row row_of(const Span& span) {
    if (span.track == Track::kSteps) return {span.track, 0, 0};
    auto& ends = ends_[{span.track, span.index}];
    const auto row =
        std::find_if(ends.begin(), ends.end(), [&](transport::Time end) { return end <= span.begin; });
    const size_t index = static_cast<size_t>(row - ends.begin());
    if (row == ends.end()) ends.emplace_back();
    ends[index] = span.end;
    return {span.track, span.index, index};
  }

 private:
  std::map<std::pair<Track, uint32_t>, std::vector<transport::Time>> ends_;
};

std::string name_of(const Row& row) {
  const auto& [track, index, number] = row;
  const std::string name = track == Track::kSteps    ? "steps"
                           : track == Track::kBucket ? "bucket " + std::to_string(index)
                           : track == Track::kCalls  ? "calls"
                                                     : "waits for rank " + std::to_string(index);
  return number == 0 ? name : name + " (" + std::to_string(number + 1) + ")";
}

int64_t microseconds(transport::Time time) { return time.count() / 1000; }

}  // namespace

// Begin and end are both rounded down to microseconds, so the nesting and the order of spans are kept.
std::string trace_events(const std::vector<Span>& spans, int32_t rank, transport::Duration unix_origin) {
  std::vector<const Span*> sorted;
  for (const Span& span : spans) sorted.push_back(&span);
  const auto order = [](const Span& span) {  // a step comes before what is within it
    return std::tuple(span.track, span.begin, span.track == Track::kSteps ? -span.end : span.end);
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Span* a, const Span* b) { return order(*a) < order(*b); });
  Rows rows;
  std::map<Row, std::vector<const Span*>> by_row;
  for (const Span* span : sorted) by_row[rows.row_of(*span)].push_back(span);

  const std::string process = "\"pid\":" + std::to_string(rank);
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\"," + process +
                     ",\"name\":\"process_name\",\"args\":{\"name\":\"rank " + std::to_string(rank) + "\"}}";
  int64_t thread = 0;
  for (const auto& [row, of_row] : by_row) {
    const std::string place = process + ",\"tid\":" + std::to_string(++thread);
    text += ",\n{\"ph\":\"M\"," + place + ",\"name\":\"thread_name\",\"args\":{\"name\":\"" + name_of(row) +
            "\"}}";
    text += ",\n{\"ph\":\"M\"," + place +
            ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":" + std::to_string(thread) + "}}";
    for (const Span* span : of_row) {
      const int64_t begin = microseconds(span->begin + unix_origin),
                    end = microseconds(span->end + unix_origin);
      text += ",\n{\"ph\":\"X\"," + place + ",\"ts\":" + std::to_string(begin) +
              ",\"dur\":" + std::to_string(end - begin) + ",\"name\":\"" + span->name + "\",\"args\":{";
      if (span->track == Track::kSteps || span->track == Track::kBucket)
        text += "\"step\":" + std::to_string(span->number) + ",";
      if (span->track == Track::kCalls) text += "\"operation\":" + std::to_string(span->number) + ",";
      if (span->nbytes > 0) text += "\"bytes\":" + std::to_string(span->nbytes) + ",";
      text += span->failed ? "\"failed\":true}}" : "\"failed\":false}}";
    }
  }
  return text + "\n]}\n";
}

}  // namespace dsgd::metrics

// The file in which a head keeps its job, which anybody may have written. With first byte 1 the rest is the
// record alone, and the lines before it are made right, since no input would guess the checksum. What is
// accepted must be what a head can go on with, and be written and read again unchanged.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "core/membership/head_file.h"
#include "transport/schema/codec.h"

using namespace dsgd;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

std::vector<std::byte> sealed(std::span<const std::byte> record) {
  const uint64_t summary[] = {record.size(), XXH3_64bits(record.data(), record.size())};
  std::vector<std::byte> file = write_head_record({});
  file.resize(file.size() - transport::encode(transport::HeadRecord()).size());
  std::memcpy(file.data() + file.size() - sizeof summary, summary, sizeof summary);
  file.insert(file.end(), record.begin(), record.end());
  return file;
}

void read(std::span<const std::byte> file) {
  auto record = read_head_file(file, "head");
  if (!record.ok()) return;
  require(record->num_workers <= record->workers.size());
  int64_t before = -1;
  for (const transport::HeadRecord::Worker& worker : record->workers) {
    require(worker.info.number > before && worker.info.number < int64_t{record->joined});
    before = worker.info.number;
  }
  uint64_t sequence = record->confirmed;
  for (const transport::WatchReply& news : record->news) require(news.sequence == ++sequence);
  const std::vector<std::byte> written = write_head_record(record.value());
  const auto again = read_head_file(written, "head");
  require(again.ok() && write_head_record(again.value()) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto all = std::as_bytes(std::span(data + 1, size - 1));
  const std::vector<std::byte> bytes(all.begin(), all.end());  // exact, so that an over-read is seen
  read(data[0] == 1 ? sealed(bytes) : bytes);
  return 0;
}

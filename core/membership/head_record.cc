#include "core/membership/head_record.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <string_view>

#include "transport/schema/codec.h"

namespace dsgd {
namespace {

using transport::HeadRecord;

constexpr std::string_view kFormat = "dsgd head state ", kVersion = "4\n";
constexpr size_t kLineBytes = kFormat.size() + kVersion.size();
struct Summary {
  uint64_t nbytes = 0, checksum = 0;
};
constexpr size_t kStartBytes = kLineBytes + sizeof(Summary);
constexpr uint32_t kMostJoined = 1 << 20;          // bounds the memory of the head that reads the record
constexpr uint64_t kMostNews = uint64_t{1} << 62;  // so that sequences do not overflow

// Null: none of what the head relies on is wrong.
const char* inconsistency(const HeadRecord& record) {
  if (record.joined > kMostJoined) return "too many workers have joined its job";
  if (record.workers.size() < record.num_workers) return "it lists fewer than num_workers workers";
  int64_t before = -1;
  for (size_t i = 0; i < record.workers.size(); ++i) {
    const transport::MemberInfo& worker = record.workers[i].info;
    const bool first = i < record.num_workers;  // of those with which the job began
    const bool right = worker.number > before && worker.number < static_cast<int64_t>(record.joined) &&
                       (!first || worker.number == static_cast<int64_t>(i));
    if (!right) return "its workers are not numbered in order";
    if (worker.worker_id.empty()) return "a worker has no id";
    before = worker.number;
  }
  if (record.confirmed > kMostNews) return "the sequence number of its news is too large";
  for (size_t i = 0; i < record.news.size(); ++i)
    if (record.news[i].sequence != record.confirmed + i + 1) return "its news are not in order";
  return nullptr;
}

}  // namespace

const size_t kMaxHeadRecordBytes = transport::kMaxRecordBytes + kStartBytes;

Status unusable_head_state(const std::string& location, const std::string& why, const std::string& remedy) {
  return Status(Code::kCorrupted, "`head_state` = '" + location + "' cannot be used: " + why + "; " + remedy)
      .with_parameter("head_state");
}

std::vector<std::byte> write_head_record(const HeadRecord& record) {
  const std::vector<uint8_t> body = transport::encode(record);
  const Summary summary{body.size(), XXH3_64bits(body.data(), body.size())};
  std::vector<std::byte> bytes(kStartBytes + body.size());
  std::memcpy(bytes.data(), kFormat.data(), kFormat.size());
  std::memcpy(bytes.data() + kFormat.size(), kVersion.data(), kVersion.size());
  std::memcpy(bytes.data() + kLineBytes, &summary, sizeof summary);
  std::memcpy(bytes.data() + kStartBytes, body.data(), body.size());
  return bytes;
}

Result<HeadRecord> read_head_record(std::span<const std::byte> bytes, const std::string& location,
                                    const std::string& remedy) {
  const auto unusable = [&](const std::string& why) { return unusable_head_state(location, why, remedy); };
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kFormat)) return unusable("it is not the state of a dsgd head");
  if (bytes.size() < kStartBytes) return unusable("it is damaged: it ends too early");
  if (!text.substr(kFormat.size()).starts_with(kVersion))
    return unusable("another version of dsgd has written it");
  Summary summary;
  std::memcpy(&summary, bytes.data() + kLineBytes, sizeof summary);
  const std::span<const std::byte> body = bytes.subspan(kStartBytes);
  if (body.size() != summary.nbytes || XXH3_64bits(body.data(), body.size()) != summary.checksum)
    return unusable("it is damaged: its checksum is wrong");
  auto record = transport::decode_head_record({reinterpret_cast<const uint8_t*>(body.data()), body.size()});
  if (!record.ok()) return unusable(record.status().message());
  if (const char* why = inconsistency(record.value())) return unusable(why);
  return record;
}

}  // namespace dsgd

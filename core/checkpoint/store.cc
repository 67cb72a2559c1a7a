#include "core/checkpoint/store.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/integer.h"
#include "core/checkpoint/checksum.h"

namespace dsgd::checkpoint {
namespace {

constexpr std::string_view kStep = "step-", kFilePrefix = "shard-", kManifest = "manifest.json";
constexpr const char* kUnpublished = "manifest.json.new";
constexpr size_t kStepDigits = 10, kRankDigits = 5;

std::string padded(uint64_t number, size_t digits) {
  const std::string text = std::to_string(number);
  return std::string(digits - std::min(digits, text.size()), '0') + text;
}

bool read_step(std::string_view name, uint64_t* step) {
  if (!name.starts_with(kStep)) return false;
  const std::string_view digits = name.substr(kStep.size());
  *step = parse_integer<uint64_t>(digits).value_or(0);
  return padded(*step, kStepDigits) == digits;
}

std::span<const std::byte> bytes_of_text(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

std::string file_name(int32_t rank, int32_t workers) {
  return std::string(kFilePrefix) + padded(static_cast<uint64_t>(rank), kRankDigits) + "-of-" +
         padded(static_cast<uint64_t>(workers), kRankDigits) + ".safetensors";
}

std::string Store::path(uint64_t step) const {
  return folder_ + '/' + std::string(kStep) + padded(step, kStepDigits);
}

Result<std::vector<Store::Entry>> Store::entries() {
  auto names = files_.list(folder_);
  if (!names.ok()) return names.status();
  std::vector<Entry> entries;
  for (const std::string& name : names.value()) {
    uint64_t step = 0;
    if (!read_step(name, &step)) continue;
    Entry entry{step, folder_ + '/' + name, false};
    const auto inside = files_.list(entry.path);
    if (!inside.ok()) continue;  // it is a file, or is being removed
    entry.whole = std::find(inside.value().begin(), inside.value().end(), kManifest) != inside.value().end();
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.step < b.step; });
  return entries;
}

// The manifest goes first, so that what is left after a crash is no checkpoint.
Status Store::remove(const Entry& entry) {
  auto names = files_.list(entry.path);
  if (!names.ok()) return names.status();
  std::stable_partition(names->begin(), names->end(), [](const auto& name) { return name == kManifest; });
  bool empty = true;
  for (const std::string& name : names.value()) {
    const bool own = name == kManifest || name == kUnpublished || name.starts_with(kFilePrefix);
    empty = empty && own;
    if (!own) continue;
    if (Status status = files_.remove_file(entry.path + '/' + name); !status.ok()) return status;
    if (name != kManifest) continue;
    if (Status status = files_.sync_folder(entry.path); !status.ok()) return status;
  }
  return empty ? files_.remove_folder(entry.path) : Status();  // the rest is not dsgd's
}

Status Store::prepare(uint64_t step) {
  if (Status status = files_.make_folder(folder_); !status.ok()) return status;
  auto found = entries();
  if (!found.ok()) return found.status();
  for (const Entry& entry : found.value()) {
    if (entry.whole && entry.step >= step)
      return Status(Code::kExists, "'" + folder_ + "' has a checkpoint of step " +
                                       std::to_string(entry.step) + ", and step " + std::to_string(step) +
                                       " is not later; load that checkpoint, or use another folder");
  }
  for (const Entry& entry : found.value()) {
    if (entry.whole) continue;
    if (Status status = remove(entry); !status.ok()) return status;
  }
  Status status = files_.make_folder(path(step));
  return status.ok() ? files_.sync_folder(folder_) : status;
}

Result<Manifest::File> Store::write_file(uint64_t step, const std::string& name,
                                         std::span<const std::span<const std::byte>> parts) {
  Checksum checksum;
  if (!checksum.begin()) return Status(Code::kNoMemory, "no memory for a checksum");
  Manifest::File file{name, 0, 0};
  for (const auto& part : parts) {
    checksum.add(part);
    file.nbytes += part.size();
  }
  file.checksum = checksum.value();
  const std::string folder = path(step);
  Status status = files_.write(folder + '/' + name, parts, transport::Access::kDefault);
  if (status.ok()) status = files_.sync_folder(folder);
  if (status.code() == Code::kNotFound)
    return Status(Code::kNotFound,
                  status.message() + "; the folder must be on a file system that all workers share");
  if (!status.ok()) return status;
  return file;
}

// A worker that was stopped may go on when the job has taken it out and saves the step anew.
Status Store::check_unchanged(const std::string& folder, const Manifest& manifest) {
  auto names = files_.list(folder);
  if (!names.ok()) return names.status();
  const bool published = std::find(names->begin(), names->end(), kManifest) != names->end();
  const auto is_as_written = [&](const Manifest::File& file) {
    auto written = files_.open(folder + '/' + file.name);
    return written.ok() && written.value()->nbytes() == file.nbytes;
  };
  if (!published && std::all_of(manifest.files.begin(), manifest.files.end(), is_as_written)) return {};
  return Status(Code::kExists,
                "'" + folder +
                    "' was changed while this worker saved its checkpoint there; another job, "
                    "or the job after it has gone on without this worker, saves to the folder");
}

Status Store::publish(const Manifest& manifest) {
  const std::string folder = path(manifest.step), text = write_manifest(manifest);
  DSGD_RETURN_IF_ERROR(check_unchanged(folder, manifest));
  if (text.size() > kLargestManifest)
    return Status(Code::kLimit, "the manifest has " + std::to_string(text.size()) + " bytes, at most " +
                                    std::to_string(kLargestManifest) + " are possible");
  const std::span<const std::byte> part = bytes_of_text(text);
  return files_.replace(folder, folder + '/' + kUnpublished, folder + '/' + std::string(kManifest),
                        {&part, 1});
}

Status Store::retain(uint64_t keep, uint64_t step) {
  if (keep == 0) return {};
  auto found = entries();
  if (!found.ok()) return found.status();
  std::erase_if(found.value(), [&](const Entry& entry) { return !entry.whole || entry.step > step; });
  for (size_t i = 0; i + keep < found->size(); ++i) DSGD_RETURN_IF_ERROR(remove(found.value()[i]));
  return {};
}

Result<Store::Found> Store::find() {
  auto names = files_.list(folder_);
  if (!names.ok()) return names.status();
  Found found;
  if (std::find(names->begin(), names->end(), kManifest) != names->end()) {
    found.path = folder_;
  } else {
    auto all = entries();
    if (!all.ok()) return all.status();
    std::erase_if(all.value(), [](const Entry& entry) { return !entry.whole; });
    if (all->empty()) return Status(Code::kNotFound, "'" + folder_ + "' has no checkpoint");
    found.path = all->back().path;
  }
  const std::string path = found.path + '/' + std::string(kManifest);
  auto file = files_.open(path);
  if (!file.ok()) return file.status();
  const uint64_t nbytes = file.value()->nbytes();
  if (nbytes > kLargestManifest)
    return Status(Code::kIo, "'" + path + "': the manifest has " + std::to_string(nbytes) +
                                 " bytes, at most " + std::to_string(kLargestManifest) + " are possible");
  std::string text(nbytes, '\0');
  DSGD_RETURN_IF_ERROR(file.value()->read(0, std::as_writable_bytes(std::span(text))));
  auto manifest = read_manifest(text);
  if (!manifest.ok())
    return Status(manifest.status().code(), "'" + path + "': " + manifest.status().message() +
                                                "; load an earlier checkpoint by its own path");
  found.manifest = std::move(manifest).value();
  found.checksum = XXH3_64bits(text.data(), text.size());
  return found;
}

}  // namespace dsgd::checkpoint

#include "core/checkpoint/store.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "core/base/integer.h"
#include "core/checkpoint/checksum.h"

namespace dsgd::checkpoint {
namespace {

constexpr std::string_view kStep = "step-", kFilePrefix = "shard-", kManifest = "manifest.json";
constexpr std::string_view kDraft = ".draft-", kRemoved = ".removed";
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

// ".removed", or that several times.
bool is_removal(std::string_view suffix) {
  if (suffix.empty()) return false;
  while (suffix.starts_with(kRemoved)) suffix.remove_prefix(kRemoved.size());
  return suffix.empty();
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

std::string Store::path(const Draft& draft) const {
  return path(draft.step) + std::string(kDraft) + std::to_string(draft.number);
}

Result<Store::Contents> Store::contents() {
  auto names = files_.list(folder_);
  if (!names.ok()) return names.status();
  Contents contents;
  for (const std::string& name : names.value()) {
    const size_t dot = std::min(name.find('.'), name.size());
    const std::string_view suffix = std::string_view(name).substr(dot);
    uint64_t step = 0;
    if (!read_step(name.substr(0, dot), &step)) continue;
    if (suffix.starts_with(kDraft) || is_removal(suffix)) {
      contents.leftovers.push_back(folder_ + '/' + name);
    } else if (suffix.empty()) {
      auto inside = files_.list(path(step));
      if (!inside.ok()) continue;  // it is a file, or is being removed
      if (std::find(inside->begin(), inside->end(), kManifest) != inside->end())
        contents.steps.push_back(step);
    }
  }
  std::sort(contents.steps.begin(), contents.steps.end());
  return contents;
}

// `path`: of a checkpoint or a leftover. The rename ends its life at once, also where several workers remove
// it or one publishes it. After a crash the next save removes the rest.
Status Store::remove(const std::string& path) {
  std::string removed = path;
  if (!path.ends_with(kRemoved)) {
    Status renamed;
    do {  // an earlier removal may have left a folder with files that are not dsgd's
      removed += kRemoved;
      renamed = files_.rename(path, removed);
    } while (renamed.code() == Code::kExists);
    if (renamed.code() == Code::kNotFound) return {};  // another worker has published or removed it
    if (!renamed.ok()) return renamed;
  }
  auto names = files_.list(removed);
  if (names.status().code() == Code::kNotFound) return {};
  if (!names.ok()) return names.status();
  bool empty = true;
  for (const std::string& name : names.value()) {
    const bool own = name == kManifest || name.starts_with(kFilePrefix);
    empty = empty && own;
    const Status status = own ? files_.remove_file(removed + '/' + name) : Status();
    if (!status.ok() && status.code() != Code::kNotFound) return status;
  }
  const Status status = empty ? files_.remove_folder(removed) : Status();  // the rest is not dsgd's
  return status.code() == Code::kNotFound ? Status() : status;
}

Status Store::prepare(const Draft& draft) {
  DSGD_RETURN_IF_ERROR(files_.make_folder(folder_));
  auto found = contents();
  if (!found.ok()) return found.status();
  if (!found->steps.empty() && found->steps.back() >= draft.step)
    return Status(Code::kExists, "'" + folder_ + "' has a checkpoint of step " +
                                     std::to_string(found->steps.back()) + ", and step " +
                                     std::to_string(draft.step) +
                                     " is not later; load that checkpoint, or use another folder");
  // In descending order, an earlier removal of a folder comes before the folder.
  std::sort(found->leftovers.begin(), found->leftovers.end(), std::greater<>());
  for (const std::string& leftover : found->leftovers) {
    const Status removed = remove(leftover);
    // The rest of a removed folder is in nobody's way. retain() has returned the error.
    if (!removed.ok() && !leftover.ends_with(kRemoved)) return removed;
  }
  DSGD_RETURN_IF_ERROR(files_.make_folder(path(draft)));
  return files_.sync_folder(folder_);
}

Result<Manifest::File> Store::write_file(const Draft& draft, const std::string& name,
                                         std::span<const std::span<const std::byte>> parts) {
  Checksum checksum;
  if (!checksum.begin()) return Status(Code::kNoMemory, "no memory for a checksum");
  Manifest::File file{name, 0, 0};
  for (const auto& part : parts) {
    checksum.add(part);
    file.nbytes += part.size();
  }
  file.checksum = checksum.value();
  const std::string folder = path(draft);
  Status status = files_.write(folder + '/' + name, parts, transport::Access::kDefault);
  if (status.ok()) status = files_.sync_folder(folder);
  if (status.code() == Code::kNotFound)
    return Status(Code::kNotFound, status.message() +
                                       "; the folder must be on a file system that all workers share, and no "
                                       "other job may save to it");
  if (!status.ok()) return status;
  return file;
}

Status Store::publish(const Draft& draft, const Manifest& manifest) {
  const std::string from = path(draft), to = path(draft.step), text = write_manifest(manifest);
  if (text.size() > kLargestManifest)
    return Status(Code::kLimit, "the manifest has " + std::to_string(text.size()) + " bytes; the limit is " +
                                    std::to_string(kLargestManifest) + " bytes");
  const std::span<const std::byte> part = bytes_of_text(text);
  Status status = files_.write(from + '/' + std::string(kManifest), {&part, 1}, transport::Access::kDefault);
  if (status.ok()) status = files_.sync_folder(from);
  if (status.ok()) status = files_.rename(from, to);
  if (status.code() == Code::kNotFound || status.code() == Code::kExists)
    return Status(Code::kExists, "'" + folder_ +
                                     "' was changed while this worker saved its checkpoint there (" +
                                     status.message() +
                                     "); another job, or this job after it evicted this worker, also writes "
                                     "there; use one folder per job");
  return status.ok() ? files_.sync_folder(folder_) : status;
}

Status Store::retain(uint64_t keep, uint64_t step) {
  if (keep == 0) return {};
  auto found = contents();
  if (!found.ok()) return found.status();
  std::vector<uint64_t>& steps = found->steps;
  std::erase_if(steps, [step](uint64_t other) { return other > step; });
  Status first_error;
  for (size_t i = 0; i + keep < steps.size(); ++i) {
    const Status removed = remove(path(steps[i]));
    if (first_error.ok()) first_error = removed;
  }
  return first_error;
}

Result<Store::Found> Store::find() {
  auto names = files_.list(folder_);
  if (!names.ok()) return names.status();
  Found found;
  if (std::find(names->begin(), names->end(), kManifest) != names->end()) {
    found.path = folder_;
  } else {
    auto all = contents();
    if (!all.ok()) return all.status();
    if (all->steps.empty()) return Status(Code::kNotFound, "'" + folder_ + "' has no checkpoint");
    found.path = path(all->steps.back());
  }
  const std::string manifest_path = found.path + '/' + std::string(kManifest);
  auto file = files_.open(manifest_path);
  if (!file.ok()) return file.status();
  const uint64_t nbytes = file.value()->nbytes();
  if (nbytes > kLargestManifest)
    return Status(Code::kIo, "'" + manifest_path + "': the manifest has " + std::to_string(nbytes) +
                                 " bytes; the limit is " + std::to_string(kLargestManifest) + " bytes");
  std::string text(nbytes, '\0');
  DSGD_RETURN_IF_ERROR(file.value()->read(0, std::as_writable_bytes(std::span(text))));
  auto manifest = read_manifest(text);
  if (!manifest.ok())
    return Status(manifest.status().code(), "'" + manifest_path + "': " + manifest.status().message() +
                                                "; load an earlier checkpoint by its own path");
  found.manifest = std::move(manifest).value();
  found.checksum = XXH3_64bits(text.data(), text.size());
  return found;
}

}  // namespace dsgd::checkpoint

#include "core/checkpoint/reader.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/base/text.h"
#include "core/checkpoint/checksum.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/tensor_name.h"

namespace dsgd::checkpoint {
namespace {

constexpr size_t kBlock = 1 << 20;  // bytes; a multiple of every element

// One file, read from its beginning to its end.
class FileReader {
 public:
  FileReader(std::unique_ptr<transport::ReadableFile> file) : file_(std::move(file)) {}
  bool begin() { return checksum_.begin(); }
  uint64_t left() const { return file_->nbytes() - position_; }
  Status read(std::span<std::byte> to) {
    Status status = file_->read(position_, to);
    checksum_.add(to);
    position_ += to.size();
    return status;
  }
  uint64_t checksum() const { return checksum_.value(); }

 private:
  std::unique_ptr<transport::ReadableFile> file_;
  Checksum checksum_;
  uint64_t position_ = 0;
};

struct Range {
  uint64_t begin, end;
};

class TensorReader {
 public:
  TensorReader(transport::Files& files, const Store::Found& found, Targets* targets)
      : files_(files), found_(found), targets_(*targets), scratch_(kBlock) {}

  Status read_file(const Manifest::File& listed) {
    path_ = found_.path + '/' + listed.name;
    auto opened = files_.open(path_);
    // The checkpoint exists, so a missing file means damage.
    if (opened.status().code() == Code::kNotFound) return bad("the file is missing");
    if (!opened.ok()) return opened.status();
    if (const uint64_t nbytes = opened.value()->nbytes(); nbytes != listed.nbytes)
      return bad("it has " + std::to_string(nbytes) + " bytes, but the manifest says " +
                 std::to_string(listed.nbytes));
    FileReader file(std::move(opened).value());
    if (!file.begin()) return Status(Code::kNoMemory, "no memory for a checksum");
    auto tensors = read_file_header(file, listed.nbytes);
    if (!tensors.ok()) return tensors.status();
    for (const StoredTensor& tensor : tensors.value()) DSGD_RETURN_IF_ERROR(read_tensor(file, tensor));
    return file.checksum() == listed.checksum ? Status() : bad("it does not match its checksum");
  }

  // Every tensor must have come completely, and no element twice.
  Status check_complete() {
    for (const auto& [name, target] : targets_) {
      std::vector<Range>& parts = parts_[name];
      std::sort(parts.begin(), parts.end(), [](Range a, Range b) { return a.begin < b.begin; });
      uint64_t position = 0;
      for (const Range part : parts) {
        if (part.begin != position) break;
        position = part.end;
      }
      const bool found = !parts.empty();
      const bool whole = position == target.count && (parts.empty() || parts.back().end == position);
      if (found ? whole : !target.required) continue;
      return Status(Code::kIo, "the checkpoint '" + found_.path + "' has not all elements of " +
                                   (name.second.empty() ? "" : "'" + name.second + "' of ") + "parameter '" +
                                   printable(name.first) + "'; load another checkpoint by its own path")
          .with_parameter(name.first);
    }
    return {};
  }

 private:
  Status bad(const std::string& why) const {
    return Status(Code::kIo,
                  "cannot load '" + path_ + "': " + why + "; load another checkpoint by its own path");
  }

  Result<std::vector<StoredTensor>> read_file_header(FileReader& file, uint64_t nbytes) {
    std::byte first[kHeaderLengthBytes];
    const size_t count = std::min<uint64_t>(nbytes, sizeof first);
    DSGD_RETURN_IF_ERROR(file.read({first, count}));
    auto length = read_header_length({first, count}, nbytes);
    if (!length.ok()) return bad(length.status().message());
    std::string header(length.value(), '\0');
    DSGD_RETURN_IF_ERROR(file.read(std::as_writable_bytes(std::span(header))));
    auto tensors = read_header(header, file.left());
    if (!tensors.ok()) return bad(tensors.status().message());
    return tensors;
  }

  Status read_tensor(FileReader& file, const StoredTensor& tensor) {
    const auto name = read_tensor_name(tensor.name);
    if (!name) return bad("'" + printable(tensor.name) + "' is not a name of a tensor");
    const auto at = targets_.find({name->parameter, name->state});
    Target* target = at == targets_.end() ? nullptr : &at->second;
    const size_t element = dtype_size(tensor.dtype);
    const uint64_t count = (tensor.end - tensor.begin) / element;
    const uint64_t begin = name->begin, end = name->end > 0 ? name->end : count;
    if (target) {
      if (tensor.dtype != target->dtype || end - begin != count || end > target->count ||
          (name->end == 0 && count != target->count))
        return bad("tensor '" + printable(tensor.name) + "' has another dtype or size than its parameter");
      parts_[at->first].push_back({begin, end});
    }
    for (uint64_t position = begin; position < end;) {
      const uint64_t some = std::min<uint64_t>(end - position, kBlock / element);
      DSGD_RETURN_IF_ERROR(file.read({scratch_.data(), some * element}));
      if (target && target->data) keep(*target, position, position + some);
      position += some;
    }
    return {};
  }

  // Copies the wanted ones of the elements [begin, end), which the scratch memory holds.
  void keep(const Target& target, uint64_t begin, uint64_t end) {
    const size_t element = dtype_size(target.dtype);
    auto range = std::lower_bound(target.wanted.begin(), target.wanted.end(), begin,
                                  [](const auto& wanted, uint64_t at) { return wanted.second <= at; });
    for (; range != target.wanted.end() && range->first < end; ++range) {
      const uint64_t first = std::max(begin, range->first), last = std::min(end, range->second);
      std::memcpy(target.data + first * element, scratch_.data() + (first - begin) * element,
                  (last - first) * element);
    }
  }

  transport::Files& files_;
  const Store::Found& found_;
  Targets& targets_;
  std::map<Targets::key_type, std::vector<Range>> parts_;
  std::vector<std::byte> scratch_;
  std::string path_;
};

}  // namespace

Status read_tensors(transport::Files& files, const Store::Found& found, Targets* targets) {
  TensorReader reader(files, found, targets);
  for (const Manifest::File& file : found.manifest.files) DSGD_RETURN_IF_ERROR(reader.read_file(file));
  return reader.check_complete();
}

}  // namespace dsgd::checkpoint

// A checkpoint on disk that anybody may have written: the manifest, the header of a file, and whole files.
// The first byte chooses. Checksums are made right, since no input would guess them. What is accepted must be
// consistent, and written and read again unchanged.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/reader.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/tensor_name.h"
#include "tests/unit/checkpoint/memory_files.h"

using namespace dsgd::checkpoint;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// `body` without its last brace.
std::string sealed(const std::string& body) {
  char tail[40];
  std::snprintf(tail, sizeof tail, ",\"xxh3\":\"%016llx\"}\n",
                static_cast<unsigned long long>(XXH3_64bits(body.data(), body.size())));
  return body + tail;
}

void read_as_manifest(const std::string& text) {
  (void)read_manifest(text);
  const auto manifest = read_manifest(sealed(text));
  if (!manifest.ok()) return;
  const auto again = read_manifest(write_manifest(manifest.value()));
  require(again.ok() && again.value() == manifest.value());
}

void read_as_header(const std::string& text) {
  constexpr uint64_t kData = 64;
  (void)read_header_length(std::as_bytes(std::span(text)), text.size());
  const auto tensors = read_header(text, kData);
  if (!tensors.ok()) return;
  uint64_t position = 0;
  for (const StoredTensor& tensor : tensors.value()) {
    require(tensor.begin == position && tensor.end >= position);
    position = tensor.end;
    if (const auto name = read_tensor_name(tensor.name)) require(write_tensor_name(*name) == tensor.name);
  }
  require(position == kData);
  const auto again = read_header(write_header(tensors.value()).substr(kHeaderLengthBytes), kData);
  require(again.ok() && again.value().size() == tensors.value().size());
}

// A file of a checkpoint, into memory of exactly the right size.
void read_as_file(const std::string& bytes) {
  const auto disk = std::make_shared<dsgd_test::MemoryDisk>();
  dsgd_test::MemoryFiles files(disk);
  disk->files["dir/file"] = bytes;
  Store::Found found;
  found.path = "dir";
  found.manifest.files = {{"file", bytes.size(), XXH3_64bits(bytes.data(), bytes.size())}};
  std::vector<std::byte> value(12), state(12);
  Targets targets;
  targets[{"w", ""}] = {dsgd::DType::kFloat32, 3, true, value.data(), {{0, 3}}};
  targets[{"w", "m"}] = {dsgd::DType::kFloat32, 3, false, state.data(), {{1, 2}}};
  (void)read_tensors(files, found, &targets);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      read_as_manifest(text);
      break;
    case 1:
      read_as_header(text);
      break;
    default:
      read_as_file(text);
  }
  return 0;
}

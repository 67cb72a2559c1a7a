#include "core/checkpoint/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/json.h"
#include "core/base/text.h"

namespace dsgd::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kMetadata = "__metadata__";
constexpr std::pair<DType, const char*> kStoredDtypes[] = {
    {DType::kFloat32, "F32"},   {DType::kFloat64, "F64"}, {DType::kInt32, "I32"},
    {DType::kInt64, "I64"},     {DType::kUint8, "U8"},    {DType::kFloat16, "F16"},
    {DType::kBfloat16, "BF16"}, {DType::kInt8, "I8"},     {DType::kUint64, "U64"}};
constexpr uint64_t kMaxElements = uint64_t{1} << 46;  // as dsgd_parameter_add allows

Status bad_header(const std::string& what) { return Status(Code::kIo, "the safetensors header " + what); }

Status bad_tensor(const std::string& name, const std::string& what) {
  return bad_header("has tensor '" + printable(name) + "' " + what);
}

// Two whole numbers, the first not above the second.
bool read_place(const json& from, StoredTensor* to) {
  if (!from.is_array() || from.size() != 2 || !from[0].is_number_unsigned() || !from[1].is_number_unsigned())
    return false;
  to->begin = from[0].get<uint64_t>();
  to->end = from[1].get<uint64_t>();
  return to->begin <= to->end;
}

bool read_shape(const json& from, std::vector<int64_t>* to) {
  if (!from.is_array() || from.size() > kMaxDimensions) return false;
  for (const json& dimension : from) {
    if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() > kMaxElements) return false;
    to->push_back(static_cast<int64_t>(dimension.get<uint64_t>()));
  }
  return true;
}

Result<StoredTensor> read_tensor(const std::string& name, const json& from) {
  StoredTensor tensor;
  tensor.name = name;
  if (!from.is_object()) return bad_tensor(name, "whose description is not an object");
  const auto dtype = from.find("dtype"), shape = from.find("shape"), place = from.find("data_offsets");
  if (dtype == from.end() || !dtype->is_string() ||
      !read_stored_dtype(dtype->get_ref<const std::string&>(), &tensor.dtype))
    return bad_tensor(name, "with an unknown dtype");
  uint64_t count = 0;
  if (shape == from.end() || !read_shape(*shape, &tensor.shape) || !count_elements(tensor.shape, &count))
    return bad_tensor(name, "with a bad shape");
  if (place == from.end() || !read_place(*place, &tensor)) return bad_tensor(name, "with bad data_offsets");
  if (tensor.end - tensor.begin != count * dtype_size(tensor.dtype))
    return bad_tensor(name, "whose data_offsets do not fit its shape");
  return tensor;
}

}  // namespace

const char* stored_dtype(DType dtype) {
  for (const auto& [known, text] : kStoredDtypes)
    if (known == dtype) return text;
  return "";
}

bool read_stored_dtype(std::string_view text, DType* dtype) {
  for (const auto& [known, name] : kStoredDtypes) {
    if (text != name) continue;
    *dtype = known;
    return true;
  }
  return false;
}

bool count_elements(std::span<const int64_t> shape, uint64_t* count) {
  if (std::any_of(shape.begin(), shape.end(), [](int64_t dimension) { return dimension < 0; })) return false;
  *count = std::find(shape.begin(), shape.end(), 0) == shape.end() ? 1 : 0;
  for (const int64_t dimension : shape) {
    if (*count > 0 && *count > kMaxElements / static_cast<uint64_t>(dimension)) return false;
    *count *= static_cast<uint64_t>(dimension);
  }
  return true;
}

std::string write_header(std::span<const StoredTensor> tensors) {
  json header = json::object();
  for (const StoredTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", stored_dtype(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  std::string bytes(kHeaderLengthBytes, '\0');
  for (size_t i = 0; i < kHeaderLengthBytes; ++i)
    bytes[i] = static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i) & 0xff);
  return bytes + text;
}

Result<uint64_t> read_header_length(std::span<const std::byte> first, uint64_t file_nbytes) {
  if (first.size() < kHeaderLengthBytes || file_nbytes < kHeaderLengthBytes)
    return bad_header("is missing: the file has " + std::to_string(file_nbytes) + " bytes");
  uint64_t length = 0;
  for (size_t i = 0; i < kHeaderLengthBytes; ++i) length |= std::to_integer<uint64_t>(first[i]) << (8 * i);
  if (length > kLargestHeader)
    return bad_header("has " + std::to_string(length) + " bytes; the limit is " +
                      std::to_string(kLargestHeader) + " bytes");
  if (length > file_nbytes - kHeaderLengthBytes)
    return bad_header("has " + std::to_string(length) + " bytes, but the file has only " +
                      std::to_string(file_nbytes));
  return length;
}

Result<std::vector<StoredTensor>> read_header(std::string_view header, uint64_t data_nbytes) {
  const json parsed = parse_json(header);
  if (!parsed.is_object()) return bad_header("is not a JSON object");
  std::vector<StoredTensor> tensors;
  for (const auto& [name, description] : parsed.items()) {
    if (name == kMetadata) continue;
    auto tensor = read_tensor(name, description);
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(std::move(tensor).value());
  }
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t position = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin != position)
      return bad_tensor(tensor.name,
                        "that " + std::string(tensor.begin < position ? "overlaps" : "leaves a gap after") +
                            " the tensor before it");
    position = tensor.end;
  }
  if (position != data_nbytes)
    return bad_header("describes " + std::to_string(position) + " bytes of data, but the file has " +
                      std::to_string(data_nbytes));
  return tensors;
}

}  // namespace dsgd::checkpoint

// The formats of a checkpoint: what is written is read again; bytes that are not right give an error.
#define XXH_INLINE_ALL
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstdio>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/tensor_name.h"

namespace dsgd::checkpoint {
namespace {

const std::vector<StoredTensor> kTensors = {{"a", DType::kFloat64, {2, 3}, 0, 48},
                                            {"b \u00e4", DType::kFloat16, {5}, 48, 58},
                                            {"empty", DType::kInt8, {0, 4}, 58, 58},
                                            {"scalar", DType::kBfloat16, {}, 58, 60}};

std::string header_text(const std::vector<StoredTensor>& tensors) {
  return write_header(tensors).substr(kHeaderLengthBytes);
}

TEST(Safetensors, HeaderIsReadAsItWasWritten) {
  const std::string bytes = write_header(kTensors);
  EXPECT_EQ(bytes.size() % 8, 0u);
  const auto length = read_header_length(std::as_bytes(std::span(bytes)), bytes.size() + 60);
  ASSERT_TRUE(length.ok());
  EXPECT_EQ(length.value(), bytes.size() - kHeaderLengthBytes);
  const auto tensors = read_header(bytes.substr(kHeaderLengthBytes), 60);
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  EXPECT_EQ(tensors.value(), kTensors);
}

TEST(Safetensors, MetadataOfOtherWritersIsSkipped) {
  const auto tensors = read_header(
      R"({"__metadata__":{"format":"pt"},"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 3);
  ASSERT_TRUE(tensors.ok());
  EXPECT_EQ(tensors.value().size(), 1u);
}

TEST(Safetensors, DeepHeadersTakeLittleMemory) {
  const std::string levels(1 << 20, '[');
  EXPECT_FALSE(read_header(levels, 0).ok());
  EXPECT_FALSE(parse_json(levels).is_array());
  const std::string deep = R"({"__metadata__":)" + std::string(1000, '[') + std::string(1000, ']') + "}";
  EXPECT_TRUE(read_header(deep, 0).ok()) << "the part is left out";
  EXPECT_LT(parse_json(deep).dump().size(), 100u);
}

TEST(Safetensors, BadHeadersAreErrors) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not a JSON object"},
      {"[]", "not a JSON object"},
      {R"({"x":1})", "description is not an object"},
      {R"({"x":{"dtype":"F8","shape":[1],"data_offsets":[0,1]}})", "unknown dtype"},
      {R"({"x":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", "bad shape"},
      {R"({"x":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", "bad shape"},
      {R"({"x":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})", "bad data_offsets"},
      {R"({"x":{"dtype":"U8","shape":[8],"data_offsets":[0,18446744073709551616]}})", "bad data_offsets"},
      {R"({"x":{"dtype":"U8","shape":[7],"data_offsets":[0,8]}})", "do not fit its shape"},
      {R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", "leaves a gap"},
      {R"({"x":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"y":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       "overlaps"},
      {R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "4 bytes of data"},
  };
  for (const auto& [text, expected] : cases) {
    const auto tensors = read_header(text, 8);
    ASSERT_FALSE(tensors.ok()) << text;
    EXPECT_NE(tensors.status().message().find(expected), std::string::npos) << tensors.status().message();
    EXPECT_EQ(tensors.status().code(), Code::kIo);
  }
}

TEST(Safetensors, LengthsOutsideTheFileAreErrors) {
  for (const uint64_t length : {uint64_t{93}, kLargestHeader + 1, UINT64_MAX, UINT64_MAX - 7}) {
    std::vector<std::byte> first;
    for (size_t i = 0; i < 8; ++i) first.push_back(static_cast<std::byte>(length >> (8 * i)));
    EXPECT_FALSE(read_header_length(first, 100).ok()) << length;
  }
  EXPECT_FALSE(read_header_length({}, 0).ok());
}

// A header with a byte changed is an error, or describes tensors that fit the file.
TEST(Safetensors, AnyChangedByteIsAnErrorOrAnotherRightHeader) {
  const std::string right = header_text(kTensors);
  for (size_t at = 0; at < right.size(); ++at) {
    for (const char byte : {'\0', '9', '"', '{', ' ', '\xff'}) {
      std::string text = right;
      text[at] = byte;
      const auto tensors = read_header(text, 60);
      if (!tensors.ok()) continue;
      uint64_t position = 0;
      for (const StoredTensor& tensor : tensors.value()) {
        EXPECT_EQ(tensor.begin, position);
        position = tensor.end;
      }
      EXPECT_EQ(position, 60u);
    }
    EXPECT_FALSE(read_header(right.substr(0, at), 60).ok() && right.find_last_not_of(' ') >= at);
  }
}

TEST(TensorNames, AreReadAsTheyWereWritten) {
  for (const TensorName& name : {TensorName{"a", "", 0, 0}, TensorName{"a", "momentum", 0, 0},
                                 TensorName{"[0:1]", "", 0, 65536}, TensorName{"['x']", "exp_avg", 7, 9}}) {
    const auto read = read_tensor_name(write_tensor_name(name));
    ASSERT_TRUE(read);
    EXPECT_EQ(*read, name);
  }
}

TEST(TensorNames, OthersAreRefused) {
  for (const char* text : {"", " ", " a", "a ", "a  b", "a b c", "a [1:1]", "a [2:1]", "a [0:", "a [x:2]",
                           "a [0:18446744073709551616]", "a [00:2]", "a m [0:2] "})
    EXPECT_FALSE(read_tensor_name(text)) << text;
}

Manifest full_manifest() {
  Manifest manifest;
  manifest.library = "1.0.0";
  manifest.step = 1200;
  manifest.view = 1;
  manifest.workers = 2;
  manifest.strategy = "ps";
  manifest.optimizer = "sgd lr=0.1 momentum=0.9";
  manifest.learning_rate = 0.1;
  manifest.loss_scale = 65536;
  manifest.loss_scale_steps = 17;
  manifest.parameters = {{"w \u20ac", DType::kFloat32, {64, 10}, true, 1199},
                         {"mean", DType::kInt64, {}, false, 0}};
  manifest.shards = {{1437, 1, 3, 32, true, {160, 144}, {{{5, 3, 7}, {30, 1, 2}}, {}}}};
  manifest.files = {{"shard-00000-of-00002.safetensors", 1000, 0xfedcba9876543210},
                    {"shard-00001-of-00002.safetensors", 0, 0}};
  return manifest;
}

// Text with a right checksum.
std::string sealed(std::string text) {
  text.pop_back();
  char tail[40];
  std::snprintf(tail, sizeof tail, ",\"xxh3\":\"%016llx\"}\n",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return text + tail;
}

TEST(Manifests, AreReadAsTheyWereWritten) {
  const auto read = read_manifest(write_manifest(full_manifest()));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value(), full_manifest());
}

TEST(Manifests, AnyChangedOrMissingByteIsAnError) {
  const std::string right = write_manifest(full_manifest());
  for (size_t at = 0; at < right.size(); ++at) {
    std::string text = right;
    text[at] = static_cast<char>(text[at] ^ 1);
    EXPECT_FALSE(read_manifest(text).ok()) << at;
    EXPECT_FALSE(read_manifest(right.substr(0, at)).ok()) << at;
  }
}

TEST(Manifests, FieldsThatAreMissingOrWrongAreNamed) {
  const std::string right = write_manifest(full_manifest());
  const std::string body = right.substr(0, right.rfind(",\"xxh3\"")) + '}';
  ASSERT_TRUE(read_manifest(sealed(body)).ok());
  const std::pair<std::pair<const char*, const char*>, const char*> cases[] = {
      {{"\"step\":1200", "\"step\":-1"}, "'step'"},
      {{"\"step\":1200", "\"step\":9223372036854775808"}, "'step'"},
      {{"\"step\"", "\"stap\""}, "'step'"},
      {{"\"version\":1", "\"version\":2"}, "version 2"},
      {{"\"workers\":2", "\"workers\":3"}, "count for each worker"},
      {{"\"workers\":2", "\"workers\":65537"}, "'workers'"},
      {{"\"dtype\":\"F32\"", "\"dtype\":\"F8\""}, "'dtype' in entry 0 of 'parameters'"},
      {{"\"shape\":[64,10]", "\"shape\":[64,-10]"}, "'shape' in entry 0 of 'parameters'"},
      {{"\"shape\":[64,10]", "\"shape\":[4294967296,4294967296]"}, "'shape' in entry 0 of 'parameters'"},
      {{"\"runs\":[[5,", "\"runs\":[["}, "'runs' in entry 0 of 'shards'"},
      {{"\"runs\":[[5,", "\"runs\":[[-5,"}, "'runs' in entry 0 of 'shards'"},
      {{",[]]", "]"}, "count for each worker"},
      {{"\"begin\":32", "\"begin\":1438"}, "'begin' in entry 0 of 'shards'"},
      {{"\"name\":\"shard-0", "\"name\":\"../hard-0"}, "'name' in entry 0 of 'files'"},
      {{"\"xxh3\":\"fedc", "\"xxh3\":\"FEDC"}, "'xxh3' in entry 0 of 'files'"},
      {{"\"loss_scale\":65536.0", "\"loss_scale\":0.0"}, "loss scale of 0"},
      {{"\"learning_rate\":0.1", "\"learning_rate\":1e999"}, "manifest"},
  };
  for (const auto& [change, expected] : cases) {
    std::string text = body;
    const size_t at = text.find(change.first);
    ASSERT_NE(at, std::string::npos) << change.first;
    text.replace(at, std::string(change.first).size(), change.second);
    const auto read = read_manifest(sealed(text));
    ASSERT_FALSE(read.ok()) << change.second;
    EXPECT_NE(read.status().message().find(expected), std::string::npos) << read.status().message();
  }
}

}  // namespace
}  // namespace dsgd::checkpoint

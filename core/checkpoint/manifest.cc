#include "core/checkpoint/manifest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/integer.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/checkpoint/safetensors.h"

namespace dsgd::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "dsgd-checkpoint";
constexpr std::string_view kChecksumField = ",\"xxh3\":\"", kTextEnd = "\"}\n";
constexpr size_t kChecksumDigits = 16;
constexpr uint64_t kMaxWorkers = 65536;

Status bad_manifest(const std::string& what) { return Status(Code::kIo, "the manifest " + what); }

std::string hex_text(uint64_t number) {
  std::string text(kChecksumDigits, '0');
  for (size_t i = kChecksumDigits; i-- > 0; number >>= 4) text[i] = "0123456789abcdef"[number & 15];
  return text;
}

bool read_hex(std::string_view text, uint64_t* number) {
  *number = parse_integer<uint64_t>(text, 16).value_or(0);
  return hex_text(*number) == text;
}

// Reads fields of an object; the first one that is missing or bad is the error.
class Fields {
 public:
  Fields(const json& object, std::string name) : object_(object), name_(std::move(name)) {
    if (!object.is_object()) fail("");
  }
  const Status& status() const { return status_; }
  void fail(const std::string& field) {
    if (status_.ok())
      status_ = bad_manifest(field.empty() ? "has no object " + name_
                                           : "has no valid field '" + field + "' in " + name_);
  }

  const json* find(const char* field) {
    if (!status_.ok()) return nullptr;
    const auto at = object_.find(field);
    if (at != object_.end()) return &*at;
    fail(field);
    return nullptr;
  }
  void read(const char* field, std::string* to) {
    if (const json* from = find(field))
      from->is_string() ? void(*to = from->get<std::string>()) : fail(field);
  }
  void read(const char* field, bool* to) {
    if (const json* from = find(field)) from->is_boolean() ? void(*to = from->get<bool>()) : fail(field);
  }
  void read(const char* field, uint64_t* to, uint64_t most = UINT64_MAX) {
    const json* from = find(field);
    if (!from) return;
    if (!from->is_number_unsigned() || from->get<uint64_t>() > most) return fail(field);
    *to = from->get<uint64_t>();
  }
  void read(const char* field, double* to, double least) {
    const json* from = find(field);
    if (!from) return;
    if (!from->is_number() || !(from->get<double>() >= least) || !std::isfinite(from->get<double>()))
      return fail(field);
    *to = from->get<double>();
  }
  void read_checksum(const char* field, uint64_t* to) {
    const json* from = find(field);
    if (from && !(from->is_string() && read_hex(from->get_ref<const std::string&>(), to))) fail(field);
  }
  void read(const char* field, std::vector<uint64_t>* to) {
    each(field, [&](const json& entry) {
      entry.is_number_unsigned() ? to->push_back(entry.get<uint64_t>()) : fail(field);
    });
  }
  void read(const char* field, std::vector<int64_t>* to) {
    each(field, [&](const json& entry) {
      const bool fits = entry.is_number_unsigned() && entry.get<uint64_t>() <= uint64_t{INT64_MAX};
      fits ? to->push_back(static_cast<int64_t>(entry.get<uint64_t>())) : fail(field);
    });
  }
  // Reads a list of lists of first, stride, count, first, ...
  void read(const char* field, std::vector<std::vector<transport::SampleRun>>* to) {
    each(field, [&](const json& entry) {
      auto& runs = to->emplace_back();
      if (!entry.is_array() || entry.size() % 3 != 0) return fail(field);
      for (const json& number : entry)
        if (!number.is_number_unsigned()) return fail(field);
      for (size_t i = 0; i < entry.size(); i += 3) {
        runs.push_back(
            {entry[i].get<uint64_t>(), entry[i + 1].get<uint64_t>(), entry[i + 2].get<uint64_t>()});
      }
    });
  }
  // Reads a list of objects.
  template <typename T, typename Read>
  void read_list(const char* field, std::vector<T>* to, Read read) {
    each(field, [&](const json& entry) {
      Fields fields(entry, "entry " + std::to_string(to->size()) + " of '" + field + "'");
      read(fields, &to->emplace_back());
      if (status_.ok()) status_ = fields.status();
    });
  }

 private:
  template <typename Each>
  void each(const char* field, Each each) {
    const json* from = find(field);
    if (!from) return;
    if (!from->is_array()) return fail(field);
    for (const json& entry : *from) {
      if (!status_.ok()) return;
      each(entry);
    }
  }

  const json& object_;
  const std::string name_;
  Status status_;
};

void read_parameter(Fields& from, Manifest::Parameter* to) {
  std::string dtype;
  uint64_t count = 0;
  from.read("name", &to->name);
  from.read("dtype", &dtype);
  from.read("shape", &to->shape);
  from.read("trained", &to->trained);
  from.read("updates", &to->updates);
  if (!from.status().ok()) return;
  if (!read_stored_dtype(dtype, &to->dtype)) from.fail("dtype");
  if (!count_elements(to->shape, &count)) from.fail("shape");
}

void read_shard(Fields& from, Manifest::Shard* to) {
  from.read("samples", &to->samples, uint64_t{INT64_MAX});
  from.read("seed", &to->seed);
  from.read("shuffle", &to->shuffle);
  from.read("epoch", &to->epoch);
  from.read("begin", &to->begin, to->samples);
  from.read("drawn", &to->drawn);
  from.read("runs", &to->runs);
}

void read_file_entry(Fields& from, Manifest::File* to) {
  from.read("name", &to->name);
  from.read("nbytes", &to->nbytes);
  from.read_checksum("xxh3", &to->checksum);
  // A name, not a path: it leads nowhere else.
  if (from.status().ok() &&
      (to->name.empty() || to->name.front() == '.' || to->name.find('/') != std::string::npos ||
       to->name.find('\0') != std::string::npos))
    from.fail("name");
}

}  // namespace

std::string write_manifest(const Manifest& manifest) {
  nlohmann::ordered_json text;
  text["format"] = kFormat;
  text["version"] = kFormatVersion;
  text["library"] = manifest.library;
  text["step"] = manifest.step;
  text["view"] = manifest.view;
  text["workers"] = manifest.workers;
  text["strategy"] = manifest.strategy;
  text["optimizer"] = manifest.optimizer;
  text["learning_rate"] = manifest.learning_rate;
  text["loss_scale"] = manifest.loss_scale;
  text["loss_scale_steps"] = manifest.loss_scale_steps;
  auto& parameters = text["parameters"] = nlohmann::ordered_json::array();
  for (const auto& parameter : manifest.parameters) {
    parameters.push_back({{"name", parameter.name},
                          {"dtype", stored_dtype(parameter.dtype)},
                          {"shape", parameter.shape},
                          {"trained", parameter.trained},
                          {"updates", parameter.updates}});
  }
  auto& shards = text["shards"] = nlohmann::ordered_json::array();
  for (const auto& shard : manifest.shards) {
    auto all_runs = nlohmann::ordered_json::array();
    for (const auto& of_worker : shard.runs) {
      auto& numbers = all_runs.emplace_back(nlohmann::ordered_json::array());
      for (const transport::SampleRun& run : of_worker) {
        numbers.push_back(run.first);
        numbers.push_back(run.stride);
        numbers.push_back(run.count);
      }
    }
    shards.push_back({{"samples", shard.samples},
                      {"seed", shard.seed},
                      {"shuffle", shard.shuffle},
                      {"epoch", shard.epoch},
                      {"begin", shard.begin},
                      {"drawn", shard.drawn},
                      {"runs", std::move(all_runs)}});
  }
  auto& files = text["files"] = nlohmann::ordered_json::array();
  for (const auto& file : manifest.files)
    files.push_back({{"name", file.name}, {"nbytes", file.nbytes}, {"xxh3", hex_text(file.checksum)}});
  // Options of a registered strategy may be any bytes.
  std::string body = text.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  body.pop_back();
  const std::string checksum = hex_text(XXH3_64bits(body.data(), body.size()));
  return body.append(kChecksumField).append(checksum).append(kTextEnd);
}

Result<Manifest> read_manifest(std::string_view text) {
  constexpr size_t kTail = kChecksumField.size() + kChecksumDigits + kTextEnd.size();
  if (text.size() < kTail) return bad_manifest("has only " + std::to_string(text.size()) + " bytes");
  const std::string_view body = text.substr(0, text.size() - kTail), tail = text.substr(body.size());
  uint64_t checksum = 0;
  if (!tail.starts_with(kChecksumField) || !tail.ends_with(kTextEnd) ||
      !read_hex(tail.substr(kChecksumField.size(), kChecksumDigits), &checksum))
    return bad_manifest("does not end with its checksum");
  if (checksum != XXH3_64bits(body.data(), body.size())) return bad_manifest("does not match its checksum");
  const json parsed = parse_json(text);
  Fields from(parsed, "the manifest");
  std::string format;
  uint64_t version = 0;
  from.read("format", &format);
  from.read("version", &version);
  if (from.status().ok() && (format != kFormat || version != kFormatVersion))
    return bad_manifest("has format '" + printable(format) + "', version " + std::to_string(version) +
                        "; this library reads '" + kFormat + "', version " + std::to_string(kFormatVersion));
  Manifest manifest;
  uint64_t view = 0, workers = 0;
  from.read("library", &manifest.library);
  from.read("step", &manifest.step, uint64_t{INT64_MAX});
  from.read("view", &view, uint64_t{INT64_MAX});
  from.read("workers", &workers, kMaxWorkers);
  from.read("strategy", &manifest.strategy);
  from.read("optimizer", &manifest.optimizer);
  from.read("learning_rate", &manifest.learning_rate, 0);
  from.read("loss_scale", &manifest.loss_scale, 0);
  from.read("loss_scale_steps", &manifest.loss_scale_steps, uint64_t{INT32_MAX});
  from.read_list("parameters", &manifest.parameters, read_parameter);
  from.read_list("shards", &manifest.shards, read_shard);
  from.read_list("files", &manifest.files, read_file_entry);
  if (!from.status().ok()) return from.status();
  if (manifest.loss_scale == 0) return bad_manifest("has a loss scale of 0");
  manifest.view = static_cast<int64_t>(view);
  manifest.workers = static_cast<int32_t>(workers);
  for (const auto& shard : manifest.shards)
    if (shard.drawn.size() != workers || shard.runs.size() != workers)
      return bad_manifest("has a data shard without a count for each worker");
  return manifest;
}

}  // namespace dsgd::checkpoint

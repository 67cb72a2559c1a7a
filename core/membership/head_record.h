// The record of a head as it is kept: a line that names the format, the length and the checksum (XXH3) of the
// record, and the record (HeadRecord of wire.capnp).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "transport/messages.h"

namespace dsgd {

extern const size_t kMaxHeadRecordBytes;

std::vector<std::byte> write_head_record(const transport::HeadRecord& record);
// `location` and `remedy`: for messages.
Result<transport::HeadRecord> read_head_record(std::span<const std::byte> bytes, const std::string& location,
                                               const std::string& remedy);
// The error for a record that is damaged, or none.
Status unusable_head_state(const std::string& location, const std::string& why, const std::string& remedy);

}  // namespace dsgd

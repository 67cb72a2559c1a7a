#include "core/mesh/task.h"

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/mesh/operations.h"

namespace dsgd {

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "all-reduce";
    case Kind::kReduceScatter:
      return "reduce-scatter";
    case Kind::kAllGather:
      return "all-gather";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kBucket:
      return "dsgd_step";
    case Kind::kStart:
      return "dsgd_start";
    case Kind::kStrategy:
      return "dsgd_strategy_set";
    case Kind::kHeader:
      return "dsgd_step";
    case Kind::kView:
      return "change of view";
    case Kind::kSave:
      return "dsgd_checkpoint_save";
    case Kind::kLoad:
      return "dsgd_checkpoint_load";
  }
  return "unknown operation";
}

const char* algorithm_name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto:
      return "auto";
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kOneHop:
      return "one hop";
    case Algorithm::kChain:
      return "chain";
    case Algorithm::kRegistered:
      return "registered";
    case Algorithm::kHalvingDoubling:
      return "halving_doubling";
  }
  return "unknown";
}

transport::BulkHeader shape_of(uint64_t operation, Kind kind, DType dtype, Algorithm algorithm,
                               size_t count) {
  transport::BulkHeader header;
  header.operation = operation;
  header.kind = static_cast<uint8_t>(kind);
  header.dtype = static_cast<uint8_t>(dtype);
  header.algorithm = static_cast<uint8_t>(algorithm);
  header.count = count;
  return header;
}

std::string describe(const transport::BulkHeader& shape, const std::string& parts) {
  const Kind kind = static_cast<Kind>(shape.kind);
  std::string text = kind_name(kind);
  const bool has_data = kind == Kind::kAllReduce || kind == Kind::kReduceScatter ||
                        kind == Kind::kAllGather || kind == Kind::kBroadcast;
  if (!has_data && shape.count == 0) return text;
  text += std::string(" (") + dtype_name(static_cast<DType>(shape.dtype)) + ", ";
  if (kind == Kind::kAllReduce || kind == Kind::kReduceScatter) {
    text += reduction_name(static_cast<Reduction>(shape.reduction));
    text += ", ";
  }
  if (shape.root >= 0) text += "root " + std::to_string(shape.root) + ", ";
  text += parts.empty() ? counted(shape.count, "element") : parts;
  return text + ')';
}

Task::Task(Operations& operations, const transport::BulkHeader& shape, Done done,
           std::shared_ptr<const Group> group)
    : operations_(operations),
      shape_(shape),
      group_(group ? std::move(group) : operations.peers().members().world()),
      done_(std::move(done)) {}

std::vector<int32_t> Task::missing_ranks() const {
  std::vector<int32_t> ranks = missing();
  for (int32_t& rank : ranks) rank = group_->ranks[rank];
  return ranks;
}

void Task::send(int32_t index, const transport::BulkHeader& header, std::span<const std::byte> data,
                std::function<void(const Status&)> done) {
  operations_.send(group_->ranks[index], header, data, std::move(done));
}

void Task::send_small(int32_t index, const transport::BulkHeader& header, std::span<const std::byte> data) {
  operations_.send_small(group_->ranks[index], header, data);
}

std::string Task::name() const {
  if (!name_.empty()) return name_;
  return std::string(kind_name(static_cast<Kind>(shape_.kind))) + " (" +
         call_name(call_of(shape_.operation)) + ")";
}

void Task::end(const Status& status) {
  if (ended_ || (status.ok() && !operations_.finish(*this))) return;
  ended_ = true;
  operations_.ended(*this, status);
}

void Task::protocol_error(int32_t index, const transport::BulkHeader& header, size_t nbytes) {
  const int32_t source = group_->ranks[index];
  const std::string chunk = std::to_string(nbytes) + " bytes at offset " + std::to_string(header.offset) +
                            " of phase " + std::to_string(header.phase);
  operations_.fail(
      *this, invalid_data(name(), source, "a chunk that does not belong to this operation (" + chunk + ")",
                          operations_.peers().members().name(source)));
}

}  // namespace dsgd

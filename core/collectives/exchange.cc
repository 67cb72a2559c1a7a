#include "core/collectives/exchange.h"

#include <cstring>

#include "core/base/describe.h"
#include "core/mesh/operations.h"
#include "core/reduce/kernels.h"

namespace dsgd {

Exchange::Exchange(Operations& operations, const transport::BulkHeader& shape, std::vector<std::byte> mine,
                   Gathered done, std::shared_ptr<const Group> group, bool optional)
    : Task(
          operations, shape, [this, done = std::move(done)](const Status& status) { done(status, parts_); },
          std::move(group)),
      parts_(group_->size()),
      have_(group_->size(), 0),
      waiting_(group_->size() - 1),
      optional_(optional) {
  parts_[group_->own_index] = std::move(mine);
  have_[group_->own_index] = 1;
}

void Exchange::start() {
  const int32_t size = group_->size(), own = group_->own_index;
  if (parts_[own].size() > transport::kSmallBytes) {  // fail now instead of at the deadline
    return operations_.fail(*this,
                            Status(Code::kInternal, name() + ": " + std::to_string(parts_[own].size()) +
                                                        " bytes are too many for an exchange in one hop"));
  }
  for (int32_t hop = 1; hop < size; ++hop) {  // each worker begins with another peer
    send_small((own + hop) % size, shape_, parts_[own]);
  }
  check_end();
}

std::optional<Landing> Exchange::locate(int32_t source, const transport::BulkHeader& header, size_t nbytes) {
  if (have_[source] || header.offset != 0 || nbytes > transport::kSmallBytes) return {};
  return Landing{.keep = [this, source](std::unique_ptr<transport::BulkReceipt> receipt) {
    const auto data = receipt->data();
    parts_[source].assign(data.begin(), data.end());
    have_[source] = 1;
    --waiting_;
    receipt->finish({});
    check_end();
  }};
}

void Exchange::check_end() {
  if (waiting_ == 0) end({});
}

std::vector<int32_t> Exchange::missing() const {
  std::vector<int32_t> indices;
  for (int32_t index = 0; index < static_cast<int32_t>(have_.size()); ++index) {
    if (!have_[index]) indices.push_back(index);
  }
  return indices;
}

bool Exchange::leave_out(int32_t index) {
  if (!optional_) return false;
  if (!std::exchange(have_[index], 1)) {
    --waiting_;
    check_end();
  }
  return true;
}

std::unique_ptr<Task> make_one_hop_all_reduce(AllReduceCall call) {
  AllReducePlan& plan = call.plan;
  const size_t nbytes = plan.count * dtype_size(plan.dtype);
  std::vector<std::byte> mine(plan.data, plan.data + nbytes);
  call.shape.algorithm = static_cast<uint8_t>(Algorithm::kOneHop);
  const auto gathered = [plan = std::move(plan), nbytes, group = call.group, done = std::move(call.done)](
                            const Status& status, const std::vector<std::vector<std::byte>>& all) {
    if (!status.ok()) return done(status);
    for (size_t index = 0; index < all.size(); ++index) {
      if (all[index].size() == nbytes) continue;
      const int32_t rank = group->ranks[index];
      return done(invalid_data(
          "", rank, std::to_string(all[index].size()) + " bytes instead of " + std::to_string(nbytes)));
    }
    if (nbytes > 0) std::memcpy(plan.data, all[0].data(), nbytes);
    for (size_t index = 1; index < all.size(); ++index)
      reduce_into(plan.dtype, plan.reduction, plan.data, all[index].data(), plan.count);
    if (plan.finish) plan.finish(0, plan.count);
    done(status);
  };
  return std::make_unique<Exchange>(call.operations, call.shape, std::move(mine), gathered, call.group);
}

}  // namespace dsgd

#include "core/step/state_stream.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

namespace dsgd {
namespace {

using transport::StateParts;

// An answer is at most kPartBytes longer than kAnswerBytes, and its parts are aligned in the staging memory.
constexpr size_t kAnswerBytes = 512 << 10;  // bytes of the parts that travel in one message
constexpr size_t kPartBytes = 256 << 10;    // bytes of the sums in one part
constexpr size_t kMostParts = 1024;         // in one message
static_assert(kAnswerBytes + kPartBytes + kMostParts * 16 <= kStagingBytes);

// By parameter: the number of its first element. The last entry is the number of all elements.
std::vector<uint64_t> first_elements(const Model& model) {
  std::vector<uint64_t> firsts = {0};
  for (const auto& parameter : model.parameters)
    firsts.push_back(firsts.back() + (parameter->trained ? parameter->count : 0));
  return firsts;
}

size_t states_of(const Model& model, const Parameter& parameter, bool with_state) {
  return with_state ? model.states_of(parameter) : 0;
}

// Of values and state.
size_t bytes_of_element(const Model& model, const Parameter& parameter, bool with_state) {
  return dtype_size(parameter.dtype) +
         states_of(model, parameter, with_state) * dtype_size(wide(parameter.dtype));
}

std::byte* bytes_at(const std::shared_ptr<void>& memory, size_t offset) {
  return static_cast<std::byte*>(memory.get()) + offset;
}

}  // namespace

StateStream::StateStream(const Model& model, uint64_t begin, uint64_t end, bool with_state)
    : model_(model),
      first_(first_elements(model)),
      begin_(begin),
      end_(end),
      with_state_(with_state),
      next_(begin) {}

void StateStream::note(const Part& update, const std::byte* sums) {
  const uint64_t first = first_[update.parameter];
  const uint64_t begin = std::max(begin_, first + update.begin),
                 end = std::min(next_, first + update.begin + update.count);
  const size_t element = dtype_size(wide(model_.parameters[update.parameter]->dtype)),
               most = kPartBytes / element;
  for (uint64_t from = begin; from < end; from += most) {
    Part part = update;
    part.begin = from - first;
    part.count = std::min<uint64_t>(most, end - from);
    const size_t nbytes = part.count * element;
    std::unique_ptr<std::byte[]> copy(new (std::nothrow) std::byte[nbytes]);
    if (!copy || logged_bytes_ + nbytes > given_bytes_) return begin_again();
    std::memcpy(copy.get(), sums + (part.begin - update.begin) * element, nbytes);
    log_.push_back({std::move(part), nbytes, std::move(copy)});
    logged_bytes_ += nbytes;
  }
}

// The receiver gets all elements again, and needs no sums of updates that were noted before.
void StateStream::begin_again() {
  log_.clear();
  logged_bytes_ = given_bytes_ = 0;
  next_ = begin_;
}

Status StateStream::begin_answer(DeviceContext& context, const OptimizerState& state) {
  answer_.clear();
  answer_bytes_ = 0;
  const auto has_room = [this] { return answer_bytes_ < kAnswerBytes && answer_.size() < kMostParts; };
  while (!log_.empty() && has_room()) {
    const Update& update = log_.front();
    const auto* data = reinterpret_cast<const uint8_t*>(update.sums.get());
    answer_.push_back(update.part);
    answer_.back().data.assign(data, data + update.nbytes);
    answer_bytes_ += update.nbytes;
    logged_bytes_ -= update.nbytes;
    log_.pop_front();
  }
  if (next_ < end_ && has_room() && !context.is_host())
    DSGD_RETURN_IF_ERROR(context.reader->wait(*context.reached));
  while (next_ < end_ && has_room()) DSGD_RETURN_IF_ERROR(append_elements(context, state));
  return {};
}

// On a device the part's offset in the staging memory is its offset in the answer.
Status StateStream::append_elements(DeviceContext& context, const OptimizerState& state) {
  const auto after = std::upper_bound(first_.begin(), first_.end(), next_);
  const auto index = static_cast<size_t>(after - first_.begin()) - 1;
  const Parameter& parameter = *model_.parameters[index];
  const size_t size = bytes_of_element(model_, parameter, with_state_);
  Part& part = answer_.emplace_back();
  part.parameter = parameter.index;
  part.begin = next_ - first_[index];
  part.count = std::min<uint64_t>({parameter.count - part.begin, end_ - next_,
                                   std::max<size_t>((kAnswerBytes - answer_bytes_) / size, 1)});
  part.data.resize(part.count * size);
  auto* to = context.is_host() ? reinterpret_cast<std::byte*>(part.data.data())
                               : bytes_at(context.staging, answer_bytes_);
  device::WorkQueue& queue = context.is_host() ? *context.queue : *context.reader;
  const auto copy = [&](const std::byte* from, size_t nbytes) {
    return queue.copy(std::exchange(to, to + nbytes), from, nbytes);
  };
  const size_t value = dtype_size(parameter.dtype), element = dtype_size(wide(parameter.dtype));
  const std::byte* const values = model_.bindings[context.replicas[0]][parameter.index].value;
  DSGD_RETURN_IF_ERROR(copy(values + part.begin * value, part.count * value));
  for (size_t s = 0; s < states_of(model_, parameter, with_state_); ++s) {
    DSGD_RETURN_IF_ERROR(
        copy(bytes_at(state[parameter.index][s], part.begin * element), part.count * element));
  }
  answer_bytes_ += part.data.size();
  given_bytes_ += part.data.size();
  next_ += part.count;
  return {};
}

std::vector<StateStream::Part> StateStream::end_answer(const DeviceContext& context) {
  size_t offset = 0;
  for (Part& part : answer_) {
    if (part.kind == StateParts::Kind::kState && !context.is_host())
      std::memcpy(part.data.data(), bytes_at(context.staging, offset), part.data.size());
    offset += part.data.size();
  }
  return std::exchange(answer_, {});
}

uint64_t trained_elements(const Model& model) { return first_elements(model).back(); }

size_t bytes_of_elements(const Model& model, uint64_t begin, uint64_t end, bool with_state) {
  size_t nbytes = 0;
  for_ranges(model, begin, end, [&](const Parameter& parameter, uint64_t from, uint64_t to) {
    nbytes += (to - from) * bytes_of_element(model, parameter, with_state);
  });
  return nbytes;
}

void for_ranges(const Model& model, uint64_t begin, uint64_t end,
                const std::function<void(const Parameter&, uint64_t, uint64_t)>& visit) {
  uint64_t first = 0;
  for (const auto& parameter : model.parameters) {
    if (!parameter->trained) continue;
    const uint64_t from = std::max(begin, first), to = std::min(end, first + parameter->count);
    if (from < to) visit(*parameter, from - first, to - first);
    first += parameter->count;
  }
}

namespace {

// Bytes of the part in the staging memory, and in the device's.
size_t padded_size(const StateStream::Part& part) { return (part.data.size() + 15) / 16 * 16; }

Status check_part(const StateStream::Part& part, const Model& model, bool with_state) {
  const auto invalid = [](const std::string& why) {
    return Status(Code::kInternal, "a part of the state " + why);
  };
  if (part.parameter >= model.parameters.size() || !model.parameters[part.parameter]->trained)
    return invalid("is of no trained parameter");
  const Parameter& parameter = *model.parameters[part.parameter];
  if (part.begin > parameter.count || part.count > parameter.count - part.begin)
    return invalid("lies outside of parameter '" + parameter.name + "'");
  const bool is_state = part.kind == StateParts::Kind::kState;
  const size_t size =
      is_state ? bytes_of_element(model, parameter, with_state) : dtype_size(wide(parameter.dtype));
  if (part.data.size() != part.count * size)
    return invalid("of parameter '" + parameter.name + "' has a wrong size");
  if (part.kind == StateParts::Kind::kUpdate && !with_state && model.states_of(parameter) > 0)
    return invalid("has an update of parameter '" + parameter.name +
                   "', whose optimizer state this worker does not hold");
  return {};
}

// `data`: the part's, where the context's queue can read it. `on_device`: memory for it on the device.
Status apply_part(const StateStream::Part& part, const std::byte* data, std::byte* on_device, Model& model,
                  DeviceContext& context, OptimizerState& state, bool with_state) {
  const Parameter& parameter = *model.parameters[part.parameter];
  const DType type = wide(parameter.dtype);
  const size_t value = dtype_size(parameter.dtype), element = dtype_size(type);
  std::vector<void*> targets;
  for (uint32_t r : context.replicas)
    targets.push_back(model.bindings[r][part.parameter].value + part.begin * value);
  auto& tensors = state[part.parameter];
  if (part.kind == StateParts::Kind::kState) {
    for (void* target : targets) DSGD_RETURN_IF_ERROR(context.queue->copy(target, data, part.count * value));
    data += part.count * value;
    for (size_t s = 0; s < states_of(model, parameter, with_state); ++s, data += part.count * element) {
      DSGD_RETURN_IF_ERROR(
          context.queue->copy(bytes_at(tensors[s], part.begin * element), data, part.count * element));
    }
    return {};
  }
  device::UpdatePiece update{
      0,  part.count, part.divisor,    0,      static_cast<uint32_t>(targets.size()), device::Action::kCopy,
      {}, {},         parameter.dtype, nullptr};
  if (part.kind == StateParts::Kind::kUpdate) {
    update.action = device::Action::kUpdate;
    ParameterSettings settings;
    settings.rate = part.rate;
    settings.decay = part.decay;
    const double rate = model.optimizer->learning_rate();
    model.optimizer->set_learning_rate(part.learning_rate);
    update.rule = model.optimizer->rule(part.updates, settings);
    model.optimizer->set_learning_rate(rate);  // the host's, for its own steps
    for (size_t s = 0; s < tensors.size(); ++s)
      (s < update.rule.state_count ? update.state[s] : update.master) =
          bytes_at(tensors[s], part.begin * element);
  }
  if (!context.is_host()) {
    DSGD_RETURN_IF_ERROR(context.queue->copy(on_device, data, part.data.size()));
    data = on_device;
  }
  return context.queue->update(type, {&update, 1}, targets, data);
}

}  // namespace

Status check_parts(std::span<const StateStream::Part> parts, const Model& model, bool with_state) {
  size_t room = kStagingBytes;
  for (const StateStream::Part& part : parts) {
    DSGD_RETURN_IF_ERROR(check_part(part, model, with_state));
    const size_t nbytes = padded_size(part);
    if (nbytes > room) return Status(Code::kInternal, "too many bytes of state at once");
    room -= nbytes;
  }
  return {};
}

Status apply_parts(std::span<const StateStream::Part> parts, Model& model, DeviceContext& context,
                   OptimizerState& state, bool with_state) {
  size_t offset = 0;
  for (const StateStream::Part& part : parts) {
    if (part.count == 0) continue;
    const auto* data = reinterpret_cast<const std::byte*>(part.data.data());
    std::byte* on_device = nullptr;
    if (!context.is_host()) {
      on_device = bytes_at(context.scratch, offset);
      std::memcpy(bytes_at(context.staging, offset), data, part.data.size());
      data = bytes_at(context.staging, offset);
      offset += padded_size(part);
    }
    DSGD_RETURN_IF_ERROR(apply_part(part, data, on_device, model, context, state, with_state));
  }
  return {};
}

}  // namespace dsgd

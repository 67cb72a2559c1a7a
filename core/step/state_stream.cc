#include "core/step/state_stream.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "core/reduce/value_digest.h"

namespace dsgd {
namespace {

using transport::StateParts;

constexpr size_t kAnswerBytes = 512 << 10;  // bytes of the parts that travel in one message
constexpr size_t kPartBytes = 256 << 10;    // bytes of the sums in one part
constexpr size_t kMostParts = 1024;         // in one message
constexpr size_t kLeastLimit = 16 << 20;

// Calls visit(parameter, begin, end) for each trained parameter with elements in the range.
template <typename Visit>
void for_ranges(const Model& model, uint64_t begin, uint64_t end, Visit visit) {
  uint64_t first = 0;
  for (const auto& parameter : model.parameters) {
    if (!parameter->trained) continue;
    const uint64_t from = std::max(begin, first), to = std::min(end, first + parameter->count);
    if (from < to) visit(*parameter, from - first, to - first);
    first += parameter->count;
  }
}

// By parameter: the number of its first element; and that of all elements.
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
      next_(begin) {
  // The sums of about two steps, and of more where there is state.
  for_ranges(model, begin, end, [&](const Parameter& parameter, uint64_t from, uint64_t to) {
    limit_ += 2 * (to - from) * bytes_of_element(model, parameter, with_state);
  });
  limit_ = std::max(limit_, kLeastLimit);
}

void StateStream::note(const Part& update, const std::byte* sums) {
  if (overflown_) return;
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
    overflown_ = !copy || logged_ + nbytes > limit_;
    if (overflown_) return log_.clear();
    std::memcpy(copy.get(), sums + (part.begin - update.begin) * element, nbytes);
    log_.push_back({std::move(part), nbytes, std::move(copy)});
    logged_ += nbytes;
  }
}

std::vector<StateStream::Part> StateStream::take(const OptimizerState& state) {
  std::vector<Part> parts;
  size_t nbytes = 0;
  while (!log_.empty() && nbytes < kAnswerBytes && parts.size() < kMostParts) {
    const Update& update = log_.front();
    const auto* data = reinterpret_cast<const uint8_t*>(update.sums.get());
    parts.push_back(update.part);
    parts.back().data.assign(data, data + update.nbytes);
    nbytes += update.nbytes;
    logged_ -= update.nbytes;
    log_.pop_front();
  }
  while (next_ < end_ && nbytes < kAnswerBytes && parts.size() < kMostParts) {
    parts.push_back(take_state(state, kAnswerBytes - nbytes));
    nbytes += parts.back().data.size();
  }
  return parts;
}

StateStream::Part StateStream::take_state(const OptimizerState& state, size_t most) {
  Part part;
  const auto after = std::upper_bound(first_.begin(), first_.end(), next_);
  const auto index = static_cast<size_t>(after - first_.begin()) - 1;
  const Parameter* const parameter = model_.parameters[index].get();
  const uint64_t first = first_[index];
  const size_t size = bytes_of_element(model_, *parameter, with_state_);
  part.parameter = parameter->index;
  part.begin = next_ - first;
  part.count =
      std::min<uint64_t>({parameter->count - part.begin, end_ - next_, std::max<size_t>(most / size, 1)});
  part.data.resize(part.count * size);
  uint8_t* to = part.data.data();
  const auto add = [&](const std::byte* from, size_t nbytes) { std::memcpy(to, from, nbytes), to += nbytes; };
  const size_t value = dtype_size(parameter->dtype), element = dtype_size(wide(parameter->dtype));
  add(model_.bindings[0][parameter->index].value + part.begin * value, part.count * value);
  for (size_t s = 0; s < states_of(model_, *parameter, with_state_); ++s)
    add(bytes_at(state[parameter->index][s], part.begin * element), part.count * element);
  next_ += part.count;
  return part;
}

uint64_t trained_elements(const Model& model) { return first_elements(model).back(); }

Status take_part(const StateStream::Part& part, Model& model, DeviceContext& host, OptimizerState& state,
                 bool with_state) {
  const auto invalid = [](const std::string& why) {
    return Status(Code::kInternal, "a part of the state " + why);
  };
  if (part.parameter >= model.parameters.size() || !model.parameters[part.parameter]->trained)
    return invalid("is of no trained parameter");
  const Parameter& parameter = *model.parameters[part.parameter];
  if (part.begin > parameter.count || part.count > parameter.count - part.begin)
    return invalid("lies outside of parameter '" + parameter.name + "'");
  const DType type = wide(parameter.dtype);
  const size_t value = dtype_size(parameter.dtype), element = dtype_size(type);
  const bool is_state = part.kind == StateParts::Kind::kState;
  const size_t size = is_state ? bytes_of_element(model, parameter, with_state) : element;
  if (part.data.size() != part.count * size)
    return invalid("of parameter '" + parameter.name + "' has a wrong size");
  std::vector<void*> targets;
  for (uint32_t r : host.replicas)
    targets.push_back(model.bindings[r][part.parameter].value + part.begin * value);
  if (part.count == 0) return {};
  if (is_state) {
    const uint8_t* from = part.data.data();
    for (void* target : targets) std::memcpy(target, from, part.count * value);
    from += part.count * value;
    for (size_t s = 0; s < states_of(model, parameter, with_state); ++s, from += part.count * element)
      std::memcpy(bytes_at(state[part.parameter][s], part.begin * element), from, part.count * element);
    return {};
  }
  device::UpdatePiece update{
      0,  part.count, part.divisor,    0,      static_cast<uint32_t>(targets.size()), device::Action::kCopy,
      {}, {},         parameter.dtype, nullptr};
  if (part.kind == StateParts::Kind::kUpdate) {
    if (!with_state && model.states_of(parameter) > 0)
      return invalid("has an update of parameter '" + parameter.name + "', whose state is elsewhere");
    update.action = device::Action::kUpdate;
    ParameterSettings settings;
    settings.rate = part.rate;
    settings.decay = part.decay;
    const double rate = model.optimizer->learning_rate();
    model.optimizer->set_learning_rate(part.learning_rate);
    update.rule = model.optimizer->rule(part.updates, settings);
    model.optimizer->set_learning_rate(rate);  // the host's, for its own steps
    const auto& tensors = state[part.parameter];
    for (size_t s = 0; s < tensors.size(); ++s)
      (s < update.rule.state_count ? update.state[s] : update.master) =
          bytes_at(tensors[s], part.begin * element);
  }
  return host.queue->update(type, {&update, 1}, targets, part.data.data());
}

uint64_t digest_values(const Model& model, uint64_t begin, uint64_t end) {
  ValueDigest digest;
  for_ranges(model, begin, end, [&](const Parameter& parameter, uint64_t from, uint64_t to) {
    digest.add(parameter.dtype, model.bindings[0][parameter.index].value + from * dtype_size(parameter.dtype),
               to - from);
  });
  return digest.result();
}

}  // namespace dsgd

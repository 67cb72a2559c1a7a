#include "core/strategy/place.h"

#include <algorithm>
#include <cstdlib>

namespace dsgd {

Result<Place> open_place(std::shared_ptr<device::Device> device) {
  auto queue = device->new_queue();
  if (!queue.ok()) return queue.status();
  auto entered = device->new_mark(), reached = device->new_mark();
  if (!entered.ok()) return entered.status();
  if (!reached.ok()) return reached.status();
  return Place{std::move(device), {}, std::move(queue).value(), {}, {}, std::move(entered).value(), std::move(reached).value(), {}};
}

Result<std::vector<Place>> make_places(const Model& model) {
  std::vector<Place> places;
  for (const auto& replica : model.replicas) {
    auto place = std::find_if(places.begin(), places.end(), [&](const Place& p) { return p.device == replica->device; });
    if (place == places.end()) {
      auto opened = open_place(replica->device);
      if (!opened.ok()) return opened.status();
      for (auto* queue : {&opened.value().to_host, &opened.value().from_host}) {
        if (opened.value().is_host()) break;
        auto made = replica->device->new_queue();
        if (!made.ok()) return made.status();
        *queue = std::move(made).value();
      }
      place = places.insert(replica->device->is_host() ? places.begin() : places.end(), std::move(opened).value());
    }
    place->replicas.push_back(replica->index);
  }
  return places;
}

Status Place::follow_default_stream() {
  Status status = device->record_stream(*entered, nullptr);
  return status.ok() ? queue->wait(*entered) : status;
}

Status Place::align() {
  Status status;
  const auto follow = [&](device::WorkQueue& behind, device::WorkQueue& before) {
    if (status.ok()) status = before.record(*reached);
    if (status.ok()) status = behind.wait(*reached);
  };
  for (const auto& copies : {to_host.get(), from_host.get()}) {
    if (copies) follow(*queue, *copies);
  }
  for (const auto& copies : {to_host.get(), from_host.get()}) {
    if (copies) follow(*copies, *queue);
  }
  return status;
}

std::shared_ptr<void> untouched_memory(size_t nbytes) { return {std::calloc(nbytes ? nbytes : 1, 1), std::free}; }

}  // namespace dsgd

#include "core/objects/object_gets.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace dsgd {

uint64_t ObjectGets::add(const std::string& name, Done done) {
  waiting_.push_back({next_ticket_, name, std::move(done)});
  return next_ticket_++;
}

void ObjectGets::cancel(uint64_t ticket, const Status& why) {
  const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                               [ticket](const Get& get) { return get.ticket == ticket; });
  if (at == waiting_.end()) return;
  const Done done = std::move(at->done);
  waiting_.erase(at);
  done(why);
}

void ObjectGets::answer(const std::string& name, const SharedObject& object) {
  std::vector<Done> ready;
  std::erase_if(waiting_, [&](Get& get) {
    if (get.name == name) ready.push_back(std::move(get.done));
    return get.name == name;
  });
  for (const Done& done : ready) done(object);
}

void ObjectGets::fail(const Status& cause) {
  while (!waiting_.empty()) {
    const Get get = std::move(waiting_.front());
    waiting_.pop_front();
    get.done(cause);
  }
}

bool ObjectGets::is_waiting(const std::string& name) const {
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const Get& get) { return get.name == name; });
}

}  // namespace dsgd

#include "core/objects/object_fetches.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace dsgd {

namespace {
void discard(Peers& peers, uint64_t put) {
  peers.discard(object_operation(put),
                Status(Code::kNotFound, "this worker does not fetch this object any more"));
}

Status gone(const std::string& name) {
  return Status(
      Code::kNotFound,
      "object '" + name + "' has been deleted, or the workers that held it have left; put it again");
}
}  // namespace

void ObjectFetches::begin(uint64_t put, const std::string& name, Object object, uint64_t total,
                          std::vector<int32_t> sources, Done done) {
  auto memory = std::make_shared<Object>(std::move(object));
  memory->bytes.reserve(total);  // pages that no data have reached take no memory
  Fetch& fetch = fetches_[put];
  fetch.name = name;
  fetch.object = std::move(memory);
  fetch.total = total;
  fetch.sources = std::move(sources);
  std::reverse(fetch.sources.begin(), fetch.sources.end());
  fetch.done = std::move(done);
  ask_next(put);
}

void ObjectFetches::ask_next(uint64_t put) {
  Fetch& fetch = fetches_.at(put);
  fetch.cut_off = false;
  if (fetch.placed > fetch.received) discard(*peers_, put);
  fetch.placed = fetch.received;
  while (!fetch.sources.empty() && peers_->has_left(fetch.sources.back())) fetch.sources.pop_back();
  if (fetch.sources.empty()) {
    const Done done = std::move(fetch.done);
    const Status why = gone(fetch.name);
    drop(put);
    return done(why);
  }
  fetch.source = fetch.sources.back();
  fetch.sources.pop_back();
  peers_->call(
      fetch.source,
      transport::FetchObject{peers_->members().view().view, peers_->rank(), fetch.name, put, fetch.received},
      transport::kNever, [this, put, source = fetch.source](const Result<transport::Message>& r) {
        answered(put, source, r.status());
      });
}

// The source has sent all, or sends no more.
void ObjectFetches::answered(uint64_t put, int32_t source, const Status& status) {
  const auto at = fetches_.find(put);
  if (at == fetches_.end() || at->second.source != source) return;
  if (peers_->is_loss_undecided(source, status)) {
    at->second.cut_off = true;
  } else {
    ask_next(put);
  }
}

void ObjectFetches::peer_left(int32_t rank) {
  std::vector<uint64_t> cut_off;
  for (const auto& [put, fetch] : fetches_) {
    if (fetch.source == rank && fetch.cut_off) cut_off.push_back(put);
  }
  for (const uint64_t put : cut_off) {
    if (fetches_.count(put)) ask_next(put);
  }
}

// The next part of an object, which is written to its destination while it is read. It holds the object's
// memory.
class ObjectFetches::Sink final : public transport::BulkSink {
 public:
  Sink(ObjectFetches& fetches, uint64_t put, std::shared_ptr<Object> object, std::byte* destination,
       size_t nbytes)
      : fetches_(fetches),
        put_(put),
        object_(std::move(object)),
        destination_(destination),
        nbytes_(nbytes) {}
  std::byte* destination(size_t offset, size_t) override { return destination_ + offset; }
  void take(size_t, std::span<const std::byte>) override {}  // destination() is never null
  void landed() override { fetches_.received(put_, nbytes_); }

 private:
  ObjectFetches& fetches_;
  const uint64_t put_;
  const std::shared_ptr<Object> object_;
  std::byte* const destination_;
  const size_t nbytes_;
};

std::byte* ObjectFetches::next_destination(Fetch& fetch, size_t nbytes) {
  const uint64_t begin = std::exchange(fetch.placed, fetch.placed + nbytes);
  fetch.object->bytes.resize(fetch.placed);
  return reinterpret_cast<std::byte*>(fetch.object->bytes.data()) + begin;
}

std::unique_ptr<transport::BulkSink> ObjectFetches::on_data(uint64_t put, const transport::BulkHeader& header,
                                                            size_t nbytes) {
  const auto at = fetches_.find(put);
  if (at == fetches_.end()) return nullptr;
  Fetch& fetch = at->second;
  if (header.source != fetch.source || header.offset != fetch.placed || nbytes > fetch.total - fetch.placed)
    return nullptr;
  return std::make_unique<Sink>(*this, put, fetch.object, next_destination(fetch, nbytes), nbytes);
}

void ObjectFetches::on_data_end(uint64_t put, const transport::BulkHeader& header,
                                std::unique_ptr<transport::BulkReceipt> receipt) {
  const auto at = fetches_.find(put);
  if (at == fetches_.end() || at->second.source != header.source) {
    return receipt->finish(Status(Code::kNotFound, "this worker does not fetch this object from rank " +
                                                       std::to_string(header.source)));
  }
  Fetch& fetch = at->second;
  const std::span<const std::byte> data = receipt->data();
  if (data.empty() || header.offset != fetch.placed || data.size() > fetch.total - fetch.placed) {
    return receipt->finish(Status(Code::kInternal, "a part of object '" + fetch.name + "' is missing"));
  }
  std::memcpy(next_destination(fetch, data.size()), data.data(), data.size());
  const size_t nbytes = data.size();
  receipt->finish({});
  received(put, nbytes);
}

void ObjectFetches::received(uint64_t put, size_t nbytes) {
  const auto at = fetches_.find(put);
  if (at == fetches_.end()) return;
  Fetch& fetch = at->second;
  fetch.received += nbytes;
  for (Reader& reader : fetch.readers) feed(put, fetch.object, fetch.received, fetch.total, &reader);
  if (fetch.received < fetch.total) return;
  const auto whole = fetches_.extract(at);
  whole.mapped().done(SharedObject(whole.mapped().object));
}

void ObjectFetches::add_reader(uint64_t put, Reader reader) {
  Fetch& fetch = fetches_.at(put);
  feed(put, fetch.object, fetch.received, fetch.total, &reader);
  fetch.readers.push_back(std::move(reader));
}

void ObjectFetches::send(uint64_t put, const SharedObject& object, Reader reader) {
  feed(put, object, object->bytes.size(), object->bytes.size(), &reader);
}

// Sends the reader all bytes that this worker has received and the reader lacks. The answer to the last chunk
// also answers the reader's request.
void ObjectFetches::feed(uint64_t put, const SharedObject& object, uint64_t received, uint64_t total,
                         Reader* reader) {
  while (reader->next < received) {
    const uint64_t count = std::min<uint64_t>(peers_->chunk_bytes(), received - reader->next);
    const std::span<const std::byte> data(
        reinterpret_cast<const std::byte*>(object->bytes.data()) + reader->next, count);
    const transport::Responder respond = reader->next + count == total ? reader->respond : nullptr;
    transport::BulkHeader header;
    header.operation = object_operation(put);
    header.offset = reader->next;
    peers_->send(reader->rank, header, data, [object, respond](const Status& status) {
      if (respond) status.ok() ? respond(transport::Message(transport::Empty{})) : respond(status);
    });
    reader->next += count;
  }
}

void ObjectFetches::drop(uint64_t put) {
  peers_->revoke(object_operation(put));
  if (const auto at = fetches_.find(put); at != fetches_.end() && at->second.placed > at->second.received)
    discard(*peers_, put);
  const auto dropped = fetches_.extract(put);
  if (!dropped) return;
  for (const Reader& reader : dropped.mapped().readers) reader.respond(gone(dropped.mapped().name));
}

}  // namespace dsgd

// Moves the data of objects between workers, in chunks. Everything is on the session's loop.
//
// A worker fetches an object from one source at a time, and passes each chunk on to its own readers as soon
// as it has it. If a source leaves or does not have the object, the worker goes on with its next source, from
// where it stands. Data arrive only at a worker that has asked for them, and land in the object's own memory.
// The transport bounds how many bytes are on their way.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/mesh/peers.h"
#include "core/objects/object.h"

namespace dsgd {

class ObjectFetches {
 public:
  using Done = std::function<void(Result<SharedObject>)>;

  struct Reader {  // a worker that fetches an object from this one
    int32_t rank;
    uint64_t next;                 // offset of the next byte to send; at first the reader's request offset
    transport::Responder respond;  // when the reader has all, or gets no more from here
  };

  void use_peers(Peers* peers) { peers_ = peers; }
  // Fetches `total` bytes into `object`, which has none yet. `sources`: in the order in which they are asked.
  // `done` gets the object, or an error when no source has it (any more).
  void begin(uint64_t put, const std::string& name, Object object, uint64_t total,
             std::vector<int32_t> sources, Done done);
  bool is_fetching(uint64_t put) const { return fetches_.count(put) > 0; }
  void add_reader(uint64_t put, Reader reader);  // of an object that is being fetched
  // Sends a whole object.
  void send(uint64_t put, const SharedObject& object, Reader reader);
  // Ends the fetch, if there is one, and the sending of the object. `done` is not called.
  void drop(uint64_t put);
  void peer_left(int32_t rank);

  // As ServerHandler::on_bulk and on_bulk_end.
  std::unique_ptr<transport::BulkSink> on_data(uint64_t put, const transport::BulkHeader& header,
                                               size_t nbytes);
  void on_data_end(uint64_t put, const transport::BulkHeader& header,
                   std::unique_ptr<transport::BulkReceipt> receipt);

 private:
  class Sink;
  struct Fetch {
    std::string name;
    std::shared_ptr<Object> object;  // its memory is reserved, so the data never move
    uint64_t total = 0, received = 0;
    uint64_t placed = 0;  // end of the chunks that have a destination: `received`, or more while some land
    std::vector<int32_t> sources;  // that have not been asked, the next one last
    int32_t source = -1;
    bool cut_off = false;  // the connection to the source has ended: it has left, or the session will fail
    std::vector<Reader> readers;
    Done done;
  };
  void ask_next(uint64_t put);
  void answered(uint64_t put, int32_t source, const Status& status);
  // Returns where the next `nbytes` are written.
  static std::byte* next_destination(Fetch& fetch, size_t nbytes);
  void received(uint64_t put, size_t nbytes);  // the next `nbytes` have been written
  void feed(uint64_t put, const SharedObject& object, uint64_t received, uint64_t total, Reader* reader);

  Peers* peers_ = nullptr;
  std::map<uint64_t, Fetch> fetches_;  // by number of the put
};

}  // namespace dsgd

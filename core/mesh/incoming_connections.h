// The connections of other workers to this one: which are admitted, and the chunks and messages that came
// before the view that they belong to. Everything is on the session's loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/base/log.h"
#include "core/base/refusal_log.h"
#include "core/mesh/members.h"
#include "core/mesh/peer_options.h"
#include "transport/network.h"

namespace dsgd {

class IncomingConnections {
 public:
  struct Connection {
    uint64_t number;                                 // in order of arrival
    int32_t rank = -1;                               // in the present view; before open(), as it claims
    bool used = false;                               // a message has come over it
    bool of_member = false;                          // its worker was in a view
    std::optional<transport::Goodbye> goodbye = {};  // its last message
  };
  struct Early {  // a chunk or a message that came before open(), or before the view that it names
    transport::ServerChannel* channel;
    size_t nbytes;  // of memory
    transport::BulkHeader header;
    std::unique_ptr<transport::BulkReceipt> receipt;  // null: a message
    transport::Message message = transport::Empty{};
    transport::Responder respond = {};
    void reject(const Status& why) const { receipt ? receipt->finish(why) : respond(why); }
  };

  // The options and the members of the present view outlive this object, and may change.
  IncomingConnections(transport::Loop& loop, const PeerOptions& options, const Members& members,
                      std::shared_ptr<Log> log);

  // This worker knows its view: closes the connections that are not from workers of this job.
  void open();
  // The view has changed: closes the connections of workers that are not in it.
  void change_view();

  // Returns an error unless the connection may be of this job and is the only one of its worker that is used.
  Status admit(transport::ServerChannel& channel);
  // Null: it was not admitted, or has been closed or removed.
  Connection* find(transport::ServerChannel& channel);
  // The connection has ended.
  std::optional<Connection> remove(transport::ServerChannel& channel);
  // Takes note of a message. The first one shows which connection its worker uses. Closes its others: they
  // are attempts that came at once with it.
  void note_use(transport::ServerChannel& channel);
  bool is_connected(int32_t rank) const;
  // Stops writing chunks of this operation that arrive, and answers them with `why`.
  void discard(uint64_t operation, const Status& why);

  // Keep a chunk or a message, unless all that are kept would take more memory than receive_memory.
  void keep(transport::ServerChannel& channel, const transport::BulkHeader& header,
            std::unique_ptr<transport::BulkReceipt> receipt);
  void keep(transport::ServerChannel& channel, transport::Message message, transport::Responder respond);
  std::vector<Early> take_early();  // in order of arrival
  void drop_early(const Status& why);

 private:
  int32_t rank_of(const transport::Hello& hello) const;  // in the present view; -1: it is no peer's
  void set_rank(const transport::Hello& hello, Connection* connection) const;
  bool is_learner(const transport::Hello& hello) const;
  Status check_early_connection(const transport::ServerChannel& channel) const;
  Status check_connection(const transport::ServerChannel& channel) const;
  // `others`: connections that claim to be of the same worker.
  Status check_others(const transport::ServerChannel& channel,
                      const std::vector<transport::ServerChannel*>& others, size_t most) const;
  void keep(Early early);
  Status not_in_job(const transport::ServerChannel& channel) const;
  void update_ranks();
  // Connections that `chosen` returns true for, in order of arrival: a simulated job is the same each time.
  template <typename Chosen>
  std::vector<transport::ServerChannel*> connections(Chosen chosen) const;
  std::vector<transport::ServerChannel*> connections_of_strangers() const;
  // Closes a connection that does not belong to this job.
  void disconnect_stranger(transport::ServerChannel& channel);
  void close(transport::ServerChannel& channel, const Status& why);
  // A connection's early chunks and messages end with it, since its channel is destroyed.
  void drop_early(const transport::ServerChannel& channel, const Status& why);

  const PeerOptions& options_;
  const Members& members_;
  const std::shared_ptr<Log> log_;
  RefusalLog refusals_;
  bool opened_ = false;
  std::unordered_map<transport::ServerChannel*, Connection> connections_;
  uint64_t next_number_ = 0;
  std::vector<Early> early_;
  size_t early_bytes_ = 0;  // of all in early_
};

}  // namespace dsgd

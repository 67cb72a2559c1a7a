// The common part of both ends of a connection: a link with RPC on it, and how the connection ends. In good
// order it writes its queue, then a goodbye, then shuts its writing side. It still reads until the peer ends,
// too: the kernel answers unread bytes with a reset, which can overtake our last answers.
#pragma once

#include <kj/async.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "transport/network.h"
#include "transport/uv/address.h"
#include "transport/uv/link.h"
#include "transport/uv/tls_context.h"
#include "transport/uv/uv_loop.h"

namespace dsgd::transport::uv {

class Resolver;
class UvNetwork;

// The parts of a network that its connections use.
struct NetworkShared {
  UvLoop& loop;
  Resolver& resolver;
  ReadShared& read;
  std::atomic<uint64_t>& sent;
  Checksum checksum;
  TlsContext* tls;  // null: none
};

inline bool wants_checksums(Checksum checksum, Stream stream) {
  return checksum == Checksum::kAlways ||
         (checksum == Checksum::kAuto && !stream.tls && leaves_machine(stream.fd));
}

class Connection : public std::enable_shared_from_this<Connection>, protected Link::Events {
 public:
  virtual ~Connection() = default;

  const std::string& peer() const { return peer_; }
  bool ended() const { return state_ == State::kEnded; }

  // The network's, called once from the loop: it lets go of the connection.
  std::function<void(Connection*)> on_ended;

  // The network goes: callbacks stop now; with `flush` what is queued still gets its chance.
  void release(bool flush);
  // Drops everything at once; from the loop.
  void kill();

 protected:
  Connection(NetworkShared shared, std::string peer) : shared_(shared), peer_(std::move(peer)) {}

  void close_link(bool flush);
  void advance();  // when there may be nothing left to send
  bool open() const { return state_ == State::kOpen; }
  UvLoop& loop() { return shared_.loop; }
  template <typename Work>
  void guarded(Work&& work) {
    loop().port().guarded(work);
  }

  virtual bool nothing_to_send() const = 0;
  virtual bool holds_messages() const = 0;     // received ones that it will still release
  virtual void mute() = 0;                     // no callback to the user from now on
  virtual void broken(const Status& why) = 0;  // from the loop, once, unless closed here before
  virtual void tear_down() = 0;                // drop RPC; from the loop, outside of KJ's events

  // Link::Events
  void link_down(const Status& why) override;
  void link_written() override;
  void link_starved() override;

  NetworkShared shared_;
  const std::string peer_;
  std::unique_ptr<Link> link_;

 private:
  enum class State { kOpen, kFlushing, kDraining, kEnded };
  void end(const Status& why);
  void finish();
  void watch();
  void check_starved();
  void cancel_timers();

  State state_ = State::kOpen;
  bool answers_queued_ = false, writing_ended_ = false;
  Time give_up_ = kNever;
  size_t queued_before_ = 0;  // when watch() last looked
  TimerId timer_ = 0, starving_ = 0;
  std::optional<uint64_t> stuck_at_;  // messages received when check_starved() found none held
};

}  // namespace dsgd::transport::uv

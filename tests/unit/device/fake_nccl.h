// A double of NCCL for tests without GPUs, over the fake runtime's streams: all members live in this process.
// libdsgd_cuda.so finds it by name, since the test's executable exports it. It calls begin and end later, as
// communicators that do not block do; what is aborted leaves rubbish behind; different collectives of one
// number stop the test. So do misuses of memory: a collective in which some members' buffers are registered
// and others' are not, memory that is freed or a communicator that is destroyed before a registration has
// ended, and a registration that ends in use.
#pragma once

namespace fake_nccl {

void set_version(int version);
// While one of these is alive, every communicator says that a remote process has gone.
class LostPeer {
 public:
  LostPeer();
  ~LostPeer();
  LostPeer(const LostPeer&) = delete;
};
// The n-th next call of a function (1: the next) fails, once.
void fail(const char* function, int n = 1);
// Communicators that are alive; and how many collectives have ended well since the beginning.
int alive();
int ended();
// Of the latter, those whose buffers were registered. Registrations that have not ended.
int ended_registered();
int registrations();
int waiting();  // ranks whose streams are in a collective that has not ended

}  // namespace fake_nccl

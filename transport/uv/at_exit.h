// Stops the loops when the process exits while sessions are open. KJ (from 1.0 on) has static objects that
// promises refer to. Their destructors run in exit(), and a loop that goes on would call a pure virtual
// function (SIGABRT). So loops come to rest before that: after the host's own atexit() functions, before the
// static objects of libraries are destroyed.
#pragma once

namespace dsgd::transport::uv {

class UvLoop;

// True once loops are at rest: waiting then ends at once, and nothing is freed, as in a forked child.
bool process_exits();

// Any thread.
void rest_at_exit(UvLoop* loop);
void forget_at_exit(UvLoop* loop);

}  // namespace dsgd::transport::uv

// What becomes of loops when the process exits while sessions are open. KJ (from 1.0 on) has static objects that promises refer to;
// their destructors run in exit(), and a loop that goes on would call a pure virtual function and take the process down with
// SIGABRT. So loops come to rest before: after what the host itself has registered with atexit(), before libraries' static objects.
#pragma once

namespace dsgd::transport::uv {

class UvLoop;

// Loops at rest do nothing any more: waiting ends at once, and what is freed is left alone, as in a forked child.
bool process_exits();

// Any thread.
void rest_at_exit(UvLoop* loop);
void forget_at_exit(UvLoop* loop);

}  // namespace dsgd::transport::uv

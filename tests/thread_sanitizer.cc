// libuv closes descriptors with syscall(SYS_close), which ThreadSanitizer does not intercept. It then reports
// a race when another thread gets the same descriptor number. This syscall() replaces libc's in programs
// built with ThreadSanitizer and forwards SYS_close to close().
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>

extern "C" [[gnu::visibility("default")]] long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_close) return close(static_cast<int>(arguments[0]));
  static const auto libc = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  return libc(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

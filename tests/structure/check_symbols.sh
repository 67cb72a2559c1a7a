#!/bin/sh
# core has no clock, thread, wait, random number or file of its own: everything comes through transport's interfaces, which is
# what lets it run in the simulation. Looks at the undefined symbols of its archive.
#
#   check_symbols.sh LIBDSGD_CORE.A
set -eu
symbols=$(nm -u "$1" 2>/dev/null | awk '{print $2}' | sort -u)
[ "$(printf '%s\n' "$symbols" | wc -l)" -gt 50 ] || { echo "too few symbols in $1 to mean anything" >&2; exit 1; }
forbidden='^(clock_gettime|gettimeofday|time|nanosleep|usleep|sleep|pthread_create|pthread_cond_.*|sem_.*|syscall|getrandom|rand|random|open|openat|fopen|read|write|socket|connect|poll|epoll_.*|fork|getenv|_ZNSt6chrono.*now.*|_ZNSt6thread.*|_ZNSt18condition_variable.*|_ZNSt13random_device.*|_ZNSt13basic_filebuf.*)(@.*)?$'
found=$(printf '%s\n' "$symbols" | grep -E "$forbidden" || true)
if [ -n "$found" ]; then
  echo "core uses the system directly:" >&2
  echo "$found" >&2
  exit 1
fi
echo "$(printf '%s\n' "$symbols" | wc -l) symbols, none of the system's clocks, threads, waits, random numbers or files"

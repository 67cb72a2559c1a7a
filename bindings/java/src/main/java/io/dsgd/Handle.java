package io.dsgd;

import java.util.function.LongConsumer;
import java.util.function.LongFunction;

/**
 * A pointer of the C library that several threads use while another may close it, or the collector
 * may find its owner unreachable. It is freed once: when it has been closed and the last call that
 * uses it has returned.
 */
final class Handle {
  private final long pointer;
  private final String what;
  private final LongConsumer free;
  private int uses = 1; // the owner's, given up by close()
  private boolean closed;

  Handle(long pointer, String what, LongConsumer free) {
    this.pointer = pointer;
    this.what = what;
    this.free = free;
  }

  /** The pointer, valid until release(). */
  synchronized long acquire() {
    if (closed) {
      throw DsgdException.closed(what);
    }
    uses++;
    return pointer;
  }

  /** As acquire(); 0 if it is closed. */
  synchronized long tryAcquire() {
    return closed ? 0 : acquire();
  }

  void release() {
    synchronized (this) {
      if (--uses > 0) {
        return;
      }
    }
    free.accept(pointer);
  }

  /** Calls from now on are refused; true for the first close. */
  boolean close() {
    synchronized (this) {
      if (closed) {
        return false;
      }
      closed = true;
    }
    release();
    return true;
  }

  synchronized boolean isClosed() {
    return closed;
  }

  void use(LongConsumer use) {
    long p = acquire();
    try {
      use.accept(p);
    } finally {
      release();
    }
  }

  <T> T get(LongFunction<T> use) {
    long p = acquire();
    try {
      return use.apply(p);
    } finally {
      release();
    }
  }
}

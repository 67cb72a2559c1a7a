package io.dsgd;

import static org.junit.jupiter.api.Assertions.fail;

import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.util.function.BooleanSupplier;

/** Runs the garbage collector. */
final class Collector {
  private Collector() {}

  /** Collects until {@code condition} holds. */
  static void collectUntil(BooleanSupplier condition) {
    long end = System.nanoTime() + 30_000_000_000L;
    while (!condition.getAsBoolean()) {
      if (System.nanoTime() > end) {
        fail("the collector has not found it within 30 s");
      }
      System.gc();
      Thread.yield();
    }
  }

  /** Collects until everything that can go is gone: something made now has gone, twice. */
  static void collectAll() {
    for (int i = 0; i < 2; i++) {
      WeakReference<ByteBuffer> control = new WeakReference<>(ByteBuffer.allocateDirect(8));
      collectUntil(() -> control.get() == null);
    }
  }
}

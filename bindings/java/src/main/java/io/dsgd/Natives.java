package io.dsgd;

import java.lang.ref.Cleaner;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** Small things that several classes need on the way to C. */
final class Natives {
  /** Frees what the host forgot. Its actions never block. */
  static final Cleaner CLEANER = Cleaner.create();

  /**
   * Longest single wait in C, in milliseconds. It bounds how late a wait notices an interrupt, or close()
   * by another thread.
   */
  static final int SLICE_MS = 20;

  private Natives() {}

  /** Called from the native code. Half a surrogate pair becomes a question mark. */
  static byte[] utf8Of(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  /** Called from the native code. Bytes that are not UTF-8 become U+FFFD. */
  static String stringOf(byte[] utf8) {
    return new String(utf8, StandardCharsets.UTF_8);
  }

  /** Milliseconds for C, rounded up; -1, C's own limit, for null. */
  static int millis(Duration timeout) {
    if (timeout == null) {
      return -1;
    }
    if (timeout.isNegative() || timeout.isZero()) {
      return 0;
    }
    try {
      long millis =
          Math.addExact(timeout.toMillis(), timeout.toNanosPart() % 1_000_000 == 0 ? 0 : 1);
      return (int) Math.min(millis, Integer.MAX_VALUE);
    } catch (ArithmeticException e) { // more than 292 million years
      return Integer.MAX_VALUE;
    }
  }

  /**
   * Waits in C in slices, between which an interrupt is heard.
   *
   * @param timeout null: no limit
   * @param waiting for the message: "interrupted while ..."
   * @return null if {@code timeout} ran out
   */
  static <T> T waitInSlices(Duration timeout, String waiting, Slice<T> call)
      throws InterruptedException {
    long begin = System.nanoTime();
    long limit = timeout == null ? Long.MAX_VALUE : millis(timeout) * 1_000_000L;
    for (long left = limit; ; left = limit - (System.nanoTime() - begin)) {
      long slice = Math.min(SLICE_MS * 1_000_000L, Math.max(0, left));
      T result = call.await((int) ((slice + 999_999) / 1_000_000));
      if (result != null) {
        return result;
      }
      if (Thread.interrupted()) {
        throw new InterruptedException("interrupted while " + waiting);
      }
      if (left <= 0) {
        return null;
      }
    }
  }

  /** Waits in C; null if the time ran out. */
  interface Slice<T> {
    T await(int millis) throws InterruptedException;
  }

  /**
   * Runs a call of C that blocks in a thread of its own, so that an interrupt ends the wait for it at
   * once. The call itself goes on then, and {@code abandoned} gets its result.
   */
  static <T> T interruptibly(String name, Supplier<T> blocking, Consumer<T> abandoned)
      throws InterruptedException {
    if (Thread.interrupted()) {
      throw new InterruptedException("interrupted before " + name);
    }
    CompletableFuture<T> result = new CompletableFuture<>();
    Thread thread =
        new Thread(
            () -> {
              try {
                result.complete(blocking.get());
              } catch (Throwable e) {
                result.completeExceptionally(e);
              }
            },
            "dsgd-" + name);
    thread.setDaemon(true);
    thread.start();
    try {
      return result.get();
    } catch (InterruptedException e) {
      result.thenAccept(abandoned);
      throw e;
    } catch (ExecutionException e) {
      throw rethrown(e.getCause());
    }
  }

  /** A failure of another thread, with the stack of this one. */
  static RuntimeException rethrown(Throwable failure) {
    if (failure instanceof DsgdException dsgd) {
      return dsgd.rethrown();
    }
    if (failure instanceof Error error) {
      throw error;
    }
    return new IllegalStateException(failure);
  }

  /** A number that C returned in place of an error. */
  static int checked(int number, String what) {
    if (number < 0) {
      throw DsgdException.ofCode(number, what);
    }
    return number;
  }
}

package io.dsgd;

import java.time.Duration;

/** A head that runs outside the workers. */
public final class Head implements AutoCloseable {
  // A wait is cut into parts, so that close() by another thread does not have to wait for its end.
  private static final int PART_MS = 100;

  private final Handle handle;

  private Head(long pointer) {
    handle = new Handle(pointer, "the head", Raw::dsgd_head_free);
    Natives.CLEANER.register(this, handle::close);
  }

  /**
   * Binds the configuration's {@code head} address (port 0: any) and serves one job until it is
   * closed.
   *
   * @param config null: environment and defaults
   */
  public static Head start(Config config) {
    long[] head = new long[1];
    Config.with(config, c -> Raw.dsgd_head_start(c, head));
    return new Head(head[0]);
  }

  /** Address that workers can be told, with the real port. */
  public String address() {
    return handle.get(Raw::dsgd_head_address);
  }

  /**
   * Waits until the job has ended.
   *
   * @param timeout null: no limit
   * @return false if the time ran out
   * @throws DsgdException how the job broke
   */
  public boolean await(Duration timeout) throws InterruptedException {
    long end =
        timeout == null ? Long.MAX_VALUE : System.nanoTime() + 1_000_000L * Natives.millis(timeout);
    while (true) {
      long left = timeout == null ? PART_MS : (end - System.nanoTime() + 999_999) / 1_000_000;
      int part = (int) Math.max(0, Math.min(PART_MS, left));
      if (handle.get(h -> Raw.dsgd_head_wait(h, part)) == dsgd_status.DSGD_OK) {
        return true;
      }
      if (left <= 0) {
        return false;
      }
      if (Thread.interrupted()) {
        throw new InterruptedException("interrupted while waiting for the job to end");
      }
    }
  }

  /** Stops it. Closing twice is fine. */
  @Override
  public void close() {
    handle.close();
  }
}

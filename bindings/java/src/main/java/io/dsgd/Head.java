package io.dsgd;

import java.time.Duration;

/** A head that runs outside the workers. */
public final class Head implements AutoCloseable {
  private final Handle handle;

  private Head(long pointer) {
    handle = new Handle(pointer, "the head", Raw::dsgd_head_free);
    Natives.CLEANER.register(this, handle::close);
  }

  /**
   * Binds the configuration's {@code head} address (port 0: any) and serves one job until it is
   * closed.
   *
   * <p>With the key {@code head_state}, a path, the head keeps its job in that file. If the head is
   * lost, the workers train on and dial it again, for {@code head_timeout}. A head that is then
   * started at the same address, with the same file, keys and token, goes on with the job. {@link
   * #close} does not remove the file; the end of the job does. With {@code head_state} =
   * "etcd://HOST:PORT/PREFIX" several heads of a job may run on several machines: one serves, the
   * others stand by. The workers' key {@code head} lists the addresses of all.
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
    Boolean ended =
        Natives.waitInSlices(
            timeout,
            "waiting for the job to end",
            millis ->
                handle.get(h -> Raw.dsgd_head_wait(h, millis)) == dsgd_status.DSGD_OK ? true : null);
    return ended != null;
  }

  /** Stops it. Closing twice is fine. */
  @Override
  public void close() {
    handle.close();
  }
}

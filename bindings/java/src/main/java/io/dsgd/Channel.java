package io.dsgd;

import java.time.Duration;

/**
 * Collectives in a sequence of their own. They need no common order with the steps of the session,
 * or with the collectives of other channels; all workers make those of one channel in the same
 * order. A thread that collects metrics beside the steps uses one.
 */
public final class Channel extends Collectives {
  private final Session session;
  private final int number;
  private final long[] options;

  Channel(Session session, int number, long timeoutMillis) {
    this.session = session;
    this.number = number;
    this.options = new long[] {0, timeoutMillis, number};
  }

  /**
   * The same channel with a deadline of its own for each collective, in place of {@code
   * step_timeout}.
   */
  public Channel withTimeout(Duration timeout) {
    return new Channel(session, number, Natives.millis(timeout));
  }

  @Override
  Session session() {
    return session;
  }

  @Override
  long[] options() {
    return options;
  }
}

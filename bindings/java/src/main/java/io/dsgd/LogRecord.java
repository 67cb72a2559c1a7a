package io.dsgd;

import java.time.Instant;

/**
 * One line of a session's log. Later versions may add components.
 *
 * @param level how severe it is
 * @param message the line
 * @param time when it was made
 * @param session number of the session, unique in the process
 * @param rank rank of the session; -1 as long as it is not known
 */
public record LogRecord(LogLevel level, String message, Instant time, long session, int rank) {
  @Override
  public String toString() {
    return level + ": " + message;
  }
}

package io.dsgd;

import java.time.Instant;

/**
 * One line of a session's log.
 *
 * @param level how important it is
 * @param message the line
 * @param time when it was made
 * @param session number of the session, unique in the process
 * @param rank of the session; -1 as long as it is not known
 */
public record LogRecord(Level level, String message, Instant time, long session, int rank) {
  /** Levels, the most important first. */
  public enum Level {
    ERROR,
    WARNING,
    INFO,
    DEBUG;

    static Level of(int code) {
      return code <= dsgd_log_level.DSGD_LOG_ERROR
          ? ERROR
          : code >= DEBUG.ordinal() ? DEBUG : values()[code];
    }
  }
}

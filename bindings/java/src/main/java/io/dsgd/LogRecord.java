package io.dsgd;

/**
 * One line of a session's log.
 *
 * @param level how important it is
 * @param message the line
 */
public record LogRecord(Level level, String message) {
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

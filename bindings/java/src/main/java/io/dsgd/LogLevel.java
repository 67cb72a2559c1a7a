// Made from dsgd.h by bindings/tables/generate; do not edit.
package io.dsgd;

/** The severity of a log record; lower is more severe. */
public enum LogLevel {
  ERROR(0),
  WARNING(1),
  INFO(2),
  DEBUG(3);

  final int code;

  LogLevel(int code) {
    this.code = code;
  }

  static LogLevel of(int code) {
    for (LogLevel known : values()) {
      if (known.code == code) {
        return known;
      }
    }
    return values()[values().length - 1];
  }
}

// Made from dsgd.h by bindings/tables/generate; do not edit.
package io.dsgd;

/** Whether a session can make steps. */
public enum SessionState {
  /** The session has not joined; its rank is 0 and its size 1 until it has. */
  JOINING(0),
  /** Session.start has not succeeded yet. */
  JOINED(1),
  /** The next step can begin. */
  STARTED(2),
  /** A step failed half-way or models differ; steps fail, collectives go on. */
  TORN(3),
  /** The session has failed; calls return its failure until it is closed. */
  FAILED(4),
  /** Session.close was called. */
  CLOSED(5),
  /** A state of a newer library. */
  UNKNOWN(-1);

  final int code;

  SessionState(int code) {
    this.code = code;
  }

  static SessionState of(int code) {
    for (SessionState known : values()) {
      if (known.code == code) {
        return known;
      }
    }
    return UNKNOWN;
  }
}

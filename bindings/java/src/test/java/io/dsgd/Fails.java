package io.dsgd;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.function.Executable;

/** assertThrows for exceptions that are told apart by their status. */
final class Fails {
  private Fails() {}

  static DsgdException with(Status status, Executable call) {
    return with(status, call, null);
  }

  static DsgdException with(Status status, Executable call, String message) {
    DsgdException e = assertThrows(DsgdException.class, call, message);
    assertEquals(status, e.status(), e.toString());
    return e;
  }

  static boolean is(Throwable e, Status status) {
    return e instanceof DsgdException failure && failure.status() == status;
  }
}

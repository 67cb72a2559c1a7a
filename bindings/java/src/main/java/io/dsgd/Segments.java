package io.dsgd;

/**
 * Refuses MemorySegments, which Java has since version 22. Java 22 and later load the class of this
 * name in META-INF/versions/22 of dsgd.jar instead; src/main/java22 has its source.
 */
final class Segments {
  private Segments() {}

  static NativeArray array(Object segment, DType type) {
    throw unsupported();
  }

  static void requireAlive(Object owner, String name) {} // no arenas

  static Object over(Object owner, long address, long nbytes, boolean readOnly) {
    throw unsupported();
  }

  private static UnsupportedOperationException unsupported() {
    return new UnsupportedOperationException(
        ("MemorySegment needs Java 22 or later and dsgd.jar with 'Multi-Release: true' in its manifest; this"
                + " is Java %s; run Java 22 or later, or use NativeArray.of or NativeArray.at")
            .formatted(Runtime.version()));
  }
}

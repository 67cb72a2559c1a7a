package io.dsgd;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.ref.Reference;
import java.nio.Buffer;

/** Makes a NativeArray of a MemorySegment and a MemorySegment of memory; for Java 22 and later. */
final class Segments {
  private Segments() {}

  /** Refuses an object that is no native segment, or one whose arena is closed. */
  static NativeArray array(Object object, DType type) {
    if (!(object instanceof MemorySegment segment)) {
      throw DsgdException.invalid(
          (object == null ? "null" : "an object of class " + object.getClass().getName())
              + " is not a MemorySegment; pass one, or use NativeArray.of for a buffer");
    }
    if (!segment.isNative()) {
      throw DsgdException.invalid(
          "the segment is on the heap; dsgd needs native memory, so allocate it with an Arena");
    }
    requireAlive(segment, "the memory");
    return new NativeArray(
        segment.address(), segment.byteSize(), type, !segment.isReadOnly(), segment);
  }

  /** Refuses a segment whose arena is closed, or a buffer made from one; takes any other object. */
  static void requireAlive(Object owner, String name) {
    MemorySegment segment =
        owner instanceof Buffer buffer
            ? MemorySegment.ofBuffer(buffer)
            : owner instanceof MemorySegment itself ? itself : null;
    if (segment != null && !segment.scope().isAlive()) {
      throw DsgdException.invalid(
          name + " is of a segment whose arena is closed; keep the arena open while dsgd uses it");
    }
  }

  /** A segment that keeps its owner reachable. */
  static Object over(Object owner, long address, long nbytes, boolean readOnly) {
    MemorySegment whole =
        MemorySegment.ofAddress(address)
            .reinterpret(nbytes, Arena.ofAuto(), ended -> Reference.reachabilityFence(owner));
    return readOnly ? whole.asReadOnly() : whole;
  }
}

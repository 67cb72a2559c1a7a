package io.dsgd;

import java.lang.ref.Reference;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.function.Consumer;

/** {@code java.lang.foreign.MemorySegment} of Java 22, by reflection: dsgd.jar is built for Java 17. */
final class Segments {
  private static final int FIRST_VERSION = 22;
  private static final String PACKAGE = "java.lang.foreign.";

  private Segments() {}

  static void requireNative(Object segment) {
    if (!type("MemorySegment").isInstance(segment)) {
      throw DsgdException.invalid(
          (segment == null ? "null" : "an object of class " + segment.getClass().getName())
              + " is not a MemorySegment; pass one, or use NativeArray.of for a buffer");
    }
    if (!(boolean) get(segment, "isNative")) {
      throw DsgdException.invalid(
          "the segment is on the heap; dsgd reads and writes memory in place: allocate it with an"
              + " Arena");
    }
  }

  static void requireAlive(Object segment, String name) {
    Object scope = get(segment, "scope");
    if (!(boolean) call(method(type("MemorySegment$Scope"), "isAlive"), scope)) {
      throw DsgdException.invalid(
          name + " is a segment whose arena is closed; keep the arena open while dsgd uses it");
    }
  }

  static long address(Object segment) {
    return (long) get(segment, "address");
  }

  static long byteSize(Object segment) {
    return (long) get(segment, "byteSize");
  }

  static boolean isReadOnly(Object segment) {
    return (boolean) get(segment, "isReadOnly");
  }

  /** A segment that keeps its owner reachable. */
  static Object over(Object owner, long address, long nbytes, boolean readOnly) {
    Class<?> segments = type("MemorySegment");
    Class<?> arenas = type("Arena");
    Object unsized = call(method(segments, "ofAddress", long.class), null, address);
    Object arena = call(method(arenas, "ofAuto"), null);
    Consumer<Object> keep = ended -> Reference.reachabilityFence(owner);
    Object whole =
        call(
            method(segments, "reinterpret", long.class, arenas, Consumer.class),
            unsized,
            nbytes,
            arena,
            keep);
    return readOnly ? call(method(segments, "asReadOnly"), whole) : whole;
  }

  private static Class<?> type(String name) {
    try {
      if (Runtime.version().feature() >= FIRST_VERSION) {
        return Class.forName(PACKAGE + name);
      }
    } catch (ClassNotFoundException e) {
      // Reported as an older Java.
    }
    throw DsgdException.of(
        Status.UNSUPPORTED,
        "this is Java "
            + Runtime.version()
            + ", which has no MemorySegment; run Java 22 or later, or use NativeArray.of or"
            + " NativeArray.at");
  }

  private static Method method(Class<?> type, String name, Class<?>... parameters) {
    try {
      return type.getMethod(name, parameters);
    } catch (NoSuchMethodException e) {
      throw new IllegalStateException(e);
    }
  }

  private static Object get(Object segment, String name) {
    return call(method(type("MemorySegment"), name), segment);
  }

  private static Object call(Method method, Object target, Object... arguments) {
    try {
      return method.invoke(target, arguments);
    } catch (InvocationTargetException e) {
      throw Natives.rethrown(e.getCause());
    } catch (IllegalAccessException e) {
      throw new IllegalStateException(e);
    }
  }
}

package io.dsgd;

import java.lang.ref.Reference;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.function.Consumer;

/** {@code java.lang.foreign.MemorySegment} of Java 22, by reflection: dsgd.jar is built for Java 17. */
final class Segments {
  private static final int FIRST_VERSION = 22;
  private static final boolean AVAILABLE = Runtime.version().feature() >= FIRST_VERSION;

  private static final Class<?> SEGMENT = type("MemorySegment");
  private static final Class<?> SCOPE = type("MemorySegment$Scope");
  private static final Class<?> ARENA = type("Arena");

  private static final Method IS_NATIVE = method(SEGMENT, "isNative");
  private static final Method IS_READ_ONLY = method(SEGMENT, "isReadOnly");
  private static final Method ADDRESS = method(SEGMENT, "address");
  private static final Method BYTE_SIZE = method(SEGMENT, "byteSize");
  private static final Method SCOPE_OF = method(SEGMENT, "scope");
  private static final Method IS_ALIVE = method(SCOPE, "isAlive");
  private static final Method OF_ADDRESS = method(SEGMENT, "ofAddress", long.class);
  private static final Method OF_AUTO = method(ARENA, "ofAuto");
  private static final Method REINTERPRET =
      method(SEGMENT, "reinterpret", long.class, ARENA, Consumer.class);
  private static final Method AS_READ_ONLY = method(SEGMENT, "asReadOnly");

  private Segments() {}

  static void requireNative(Object segment) {
    requireJava22();
    if (!isSegment(segment)) {
      throw DsgdException.invalid(
          (segment == null ? "null" : "an object of class " + segment.getClass().getName())
              + " is not a MemorySegment; pass one, or use NativeArray.of for a buffer");
    }
    if (!(boolean) call(IS_NATIVE, segment)) {
      throw DsgdException.invalid(
          "the segment is on the heap; dsgd needs native memory, so allocate it with an Arena");
    }
  }

  /** Refuses a segment whose arena is closed; takes any other object. */
  static void requireAlive(Object owner, String name) {
    if (isSegment(owner) && !(boolean) call(IS_ALIVE, call(SCOPE_OF, owner))) {
      throw DsgdException.invalid(
          name + " is a segment whose arena is closed; keep the arena open while dsgd uses it");
    }
  }

  static long address(Object segment) {
    return (long) call(ADDRESS, segment);
  }

  static long byteSize(Object segment) {
    return (long) call(BYTE_SIZE, segment);
  }

  static boolean isReadOnly(Object segment) {
    return (boolean) call(IS_READ_ONLY, segment);
  }

  /** A segment that keeps its owner reachable. */
  static Object over(Object owner, long address, long nbytes, boolean readOnly) {
    requireJava22();
    Consumer<Object> keep = ended -> Reference.reachabilityFence(owner);
    Object unsized = call(OF_ADDRESS, null, address);
    Object whole = call(REINTERPRET, unsized, nbytes, call(OF_AUTO, null), keep);
    return readOnly ? call(AS_READ_ONLY, whole) : whole;
  }

  private static boolean isSegment(Object object) {
    return AVAILABLE && SEGMENT.isInstance(object);
  }

  private static void requireJava22() {
    if (!AVAILABLE) {
      throw DsgdException.of(
          Status.UNSUPPORTED,
          "this is Java "
              + Runtime.version()
              + ", which has no MemorySegment; run Java 22 or later, or use NativeArray.of or"
              + " NativeArray.at");
    }
  }

  /** Null before Java 22. */
  private static Class<?> type(String name) {
    try {
      return AVAILABLE ? Class.forName("java.lang.foreign." + name) : null;
    } catch (ClassNotFoundException e) {
      throw new IllegalStateException(e);
    }
  }

  private static Method method(Class<?> type, String name, Class<?>... parameters) {
    try {
      return AVAILABLE ? type.getMethod(name, parameters) : null;
    } catch (NoSuchMethodException e) {
      throw new IllegalStateException(e);
    }
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

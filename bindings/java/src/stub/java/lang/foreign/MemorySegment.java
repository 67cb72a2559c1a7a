package java.lang.foreign;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.util.function.Consumer;

/** The part of Java 22's MemorySegment that dsgd and its tests use; for javac only. */
public interface MemorySegment {
  long address();

  long byteSize();

  boolean isNative();

  boolean isReadOnly();

  MemorySegment asReadOnly();

  ByteBuffer asByteBuffer();

  Scope scope();

  MemorySegment reinterpret(long newSize, Arena arena, Consumer<MemorySegment> cleanup);

  static MemorySegment ofAddress(long address) {
    throw new AssertionError();
  }

  static MemorySegment ofBuffer(Buffer buffer) {
    throw new AssertionError();
  }

  static MemorySegment ofArray(byte[] array) {
    throw new AssertionError();
  }

  interface Scope {
    boolean isAlive();
  }
}

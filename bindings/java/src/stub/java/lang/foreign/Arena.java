package java.lang.foreign;

/** The part of Java 22's Arena that dsgd and its tests use; for javac only. */
public interface Arena extends AutoCloseable {
  MemorySegment allocate(long byteSize, long byteAlignment);

  @Override
  void close();

  static Arena ofAuto() {
    throw new AssertionError();
  }

  static Arena ofShared() {
    throw new AssertionError();
  }
}

// Made from dsgd.h by bindings/tables/generate; do not edit.
package io.dsgd;

/** An element type. */
public enum DType {
  FLOAT32(0, 4),
  FLOAT64(1, 8),
  INT32(2, 4),
  INT64(3, 8),
  UINT8(4, 1),
  /** IEEE 754 binary16. */
  FLOAT16(5, 2),
  /** The upper half of a float32. */
  BFLOAT16(6, 2),
  INT8(7, 1),
  UINT64(8, 8);

  final int code;
  private final int size;

  DType(int code, int size) {
    this.code = code;
    this.size = size;
  }

  /** Bytes of one element. */
  public int size() {
    return size;
  }
}

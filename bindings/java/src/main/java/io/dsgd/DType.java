// Made from dsgd.h by bindings/tables/generate; do not edit.
package io.dsgd;

/** An element type. */
public enum DType {
  FLOAT32(0, 'f', 4),
  FLOAT64(1, 'f', 8),
  INT32(2, 'i', 4),
  INT64(3, 'i', 8),
  UINT8(4, 'u', 1),
  /** IEEE 754 binary16. */
  FLOAT16(5, 'f', 2),
  /** The upper half of a float32. */
  BFLOAT16(6, 'b', 2),
  INT8(7, 'i', 1),
  UINT64(8, 'u', 8);

  final int code;
  final char kind; // i: integer, u: unsigned, f: floating point, b: bfloat
  private final int size;

  DType(int code, char kind, int size) {
    this.code = code;
    this.kind = kind;
    this.size = size;
  }

  /** Bytes of one element. */
  public int size() {
    return size;
  }
}

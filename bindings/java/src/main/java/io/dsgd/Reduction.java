// Made from dsgd.h by bindings/tables/generate; do not edit.
package io.dsgd;

/**
 * How a collective combines the elements of the workers; integer sums wrap around, and the mean is
 * for floating point.
 */
public enum Reduction {
  SUM(0),
  MIN(1),
  MAX(2),
  PROD(3),
  MEAN(4);

  final int code;

  Reduction(int code) {
    this.code = code;
  }
}

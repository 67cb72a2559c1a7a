package io.dsgd;

/**
 * How the data of several workers become one. Integer sums wrap around; {@code MEAN} is for
 * floating point only.
 */
public enum Reduction {
  SUM(dsgd_reduction.DSGD_SUM),
  MIN(dsgd_reduction.DSGD_MIN),
  MAX(dsgd_reduction.DSGD_MAX),
  PROD(dsgd_reduction.DSGD_PROD),
  MEAN(dsgd_reduction.DSGD_MEAN);

  final int code;

  Reduction(int code) {
    this.code = code;
  }
}

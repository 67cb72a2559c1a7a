package io.dsgd;

/**
 * What one step did.
 *
 * @param step index of the step, from 0
 * @param view number of the view in which it completed
 * @param size workers in that view
 * @param applied whether values were updated; false when all weights were 0, or see {@link
 *     Session#lossScale}
 * @param allDone whether every worker gave weight 0: nobody has data left
 * @param stop whether some worker asked to stop before this step
 * @param weight sum of all contribution weights
 * @param gradientNorm L2 norm of the mean gradient; NaN unless {@code gradient_norm} or {@code loss_scale} is
 *     configured
 */
public record StepResult(
    long step,
    long view,
    int size,
    boolean applied,
    boolean allDone,
    boolean stop,
    double weight,
    double gradientNorm) {}
